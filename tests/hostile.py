"""Queries that want to write, to read what is hidden, or to use more than they may; by hand and by a seeded generator."""

from __future__ import annotations

import random

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers(id), amount DECIMAL(10, 2),
    day DATE, note TEXT);
CREATE TABLE secrets (id INTEGER PRIMARY KEY, word TEXT);
INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bo');
INSERT INTO orders VALUES (1, 1, 10.50, '2026-01-02', 'first'), (2, 2, 20.00, '2026-02-03', NULL);
INSERT INTO secrets VALUES (1, 'CANARY');
CREATE VIEW totals AS SELECT customer, SUM(amount) AS total FROM orders GROUP BY customer;
"""
EXPOSED = ("customers", "orders", "totals")

WRITES = """
INSERT INTO orders VALUES (9, 1, 1, '2026-01-01', 'x')
UPDATE orders SET amount = 0
DELETE FROM orders
DROP TABLE orders
DROP VIEW totals
ALTER TABLE orders ADD COLUMN x INTEGER
CREATE TABLE x (a INTEGER)
CREATE TEMP TABLE x (a INTEGER)
CREATE TABLE x AS SELECT * FROM orders
CREATE VIEW x AS SELECT 1
CREATE INDEX x ON orders (day)
TRUNCATE TABLE orders
REPLACE INTO orders VALUES (1, 1, 1, '2026-01-01', 'x')
MERGE INTO orders USING customers ON orders.id = customers.id WHEN MATCHED THEN DELETE
INSERT INTO orders SELECT * FROM orders
INSERT INTO orders VALUES (9, 1, 1, '2026-01-01', 'x') RETURNING *
WITH a AS (INSERT INTO orders VALUES (9, 1, 1, '2026-01-01', 'x') RETURNING *) SELECT * FROM a
WITH a AS (DELETE FROM orders RETURNING *) SELECT * FROM a
WITH a AS (UPDATE orders SET amount = 0 RETURNING *) SELECT * FROM a
WITH a AS (SELECT 1 AS id) DELETE FROM orders WHERE id IN (SELECT id FROM a)
SELECT * INTO x FROM orders
ATTACH 'stolen.db' AS x
ATTACH DATABASE 'stolen.db' AS x
ATTACH 'stolen.db' AS x (TYPE SQLITE)
DETACH main
VACUUM
VACUUM INTO 'stolen.db'
REINDEX
ANALYZE
PRAGMA user_version = 7
PRAGMA journal_mode = DELETE
PRAGMA writable_schema = ON
PRAGMA database_list
COPY orders TO 'stolen.csv'
COPY (SELECT * FROM orders) TO 'stolen.csv'
COPY orders FROM 'stolen.csv'
COPY (SELECT 1) TO PROGRAM 'touch stolen'
EXPORT DATABASE 'stolen'
INSTALL httpfs
LOAD httpfs
CREATE SECRET s (TYPE s3)
SET search_path = secrets
SET default_transaction_read_only = off
SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE
SET TRANSACTION READ WRITE
SET enable_external_access = true
RESET ALL
BEGIN
COMMIT
ROLLBACK
START TRANSACTION READ WRITE
PREPARE p AS DELETE FROM orders
EXECUTE p
DO $$ BEGIN DELETE FROM orders; END $$
CALL do_something()
GRANT ALL ON orders TO public
REVOKE ALL ON orders FROM public
CREATE FUNCTION f() RETURNS INTEGER LANGUAGE sql AS 'SELECT 1'
CREATE MACRO f() AS 1
CREATE SEQUENCE s
CREATE ROLE evil
CREATE EXTENSION dblink
COMMENT ON TABLE orders IS 'x'
LOCK TABLE orders
LISTEN x
NOTIFY x
EXPLAIN ANALYZE DELETE FROM orders
CHECKPOINT
USE memory
FORCE CHECKPOINT
SELECT lo_import('/etc/passwd')
SELECT set_config('search_path', 'x', false)
SELECT nextval('s')
SELECT pg_advisory_lock(1)
SELECT load_extension('/tmp/x.so')
SELECT writefile('stolen', 'x')
SELECT edit('x')
""".strip().splitlines()

READS = """
SELECT * FROM secrets
SELECT word FROM "secrets"
SELECT word FROM main.secrets
SELECT word FROM public.secrets
SELECT * FROM orders, secrets
SELECT * FROM orders JOIN secrets ON secrets.id = orders.id
SELECT (SELECT word FROM secrets) AS w
SELECT * FROM orders WHERE EXISTS (SELECT 1 FROM secrets WHERE word LIKE 'C%')
SELECT * FROM orders WHERE id IN (SELECT id FROM secrets)
SELECT * FROM orders ORDER BY (SELECT word FROM secrets)
SELECT * FROM orders LIMIT (SELECT COUNT(*) FROM secrets)
SELECT COUNT(*) FROM orders GROUP BY id HAVING COUNT(*) > (SELECT COUNT(*) FROM secrets)
SELECT SUM(amount) OVER (ORDER BY (SELECT MAX(id) FROM secrets)) FROM orders
SELECT id FROM orders UNION SELECT word FROM secrets
SELECT id FROM orders EXCEPT SELECT id FROM secrets
WITH a AS (SELECT * FROM secrets) SELECT * FROM a
WITH a AS (WITH b AS (SELECT * FROM secrets) SELECT * FROM b) SELECT * FROM a
WITH totals AS (SELECT * FROM secrets) SELECT * FROM totals
WITH Totals AS (SELECT * FROM secrets) SELECT * FROM totals
WITH "TOTALS" AS (SELECT * FROM secrets) SELECT * FROM "TOTALS"
WITH secrets AS (SELECT 1 AS word) SELECT * FROM secrets
SELECT * FROM (WITH secrets AS (SELECT 1) SELECT * FROM secrets) AS a, secrets
WITH a AS (SELECT * FROM a) SELECT * FROM a
SELECT * FROM sqlite_master
SELECT * FROM sqlite_schema
SELECT sql FROM main.sqlite_master
SELECT * FROM pragma_table_info('secrets')
SELECT * FROM dbstat
SELECT * FROM pg_catalog.pg_authid
SELECT * FROM pg_class
SELECT * FROM pg_stat_activity
SELECT * FROM information_schema.tables
SELECT * FROM duckdb_tables()
SELECT * FROM duckdb_settings()
SELECT * FROM pg_ls_dir('/')
SELECT pg_read_file('/etc/passwd')
SELECT pg_read_binary_file('/etc/passwd')
SELECT * FROM dblink('dbname=postgres', 'select 1') AS t(a int)
SELECT query_to_xml('select * from secrets', true, true, '')
SELECT table_to_xml('secrets', true, true, '')
SELECT current_setting('data_directory')
SELECT version()
SELECT current_user
SELECT session_user
SELECT @@version
SELECT getenv('HOME')
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_parquet('https://example.org/x.parquet')
SELECT * FROM '/etc/passwd'
SELECT * FROM "/etc/passwd"
SELECT * FROM glob('/etc/*')
SELECT * FROM sniff_csv('/etc/passwd')
SELECT * FROM query('SELECT * FROM secrets')
SELECT * FROM query_table('secrets')
SELECT readfile('/etc/passwd')
SELECT load_file('/etc/passwd')
SELECT 'secrets'::regclass
SELECT has_table_privilege('secrets', 'select')
SELECT pg_relation_size('secrets')
SELECT ? FROM orders
SELECT :a FROM orders
SELECT $1 FROM orders
SELECT "CANARY"
SELECT orders.pg_sleep FROM orders
SELECT (orders).pg_typeof FROM orders
SELECT pg_catalog.pg_sleep(1)
SELECT "pg_sleep"(1)
SELECT * FROM orders FOR UPDATE
SELECT * FROM orders FOR SHARE
SELECT * FROM LATERAL (SELECT * FROM secrets) AS s
SELECT * FROM orders TABLESAMPLE SYSTEM (10), secrets
TABLE secrets
FROM secrets
FROM secrets SELECT word
VALUES ((SELECT word FROM secrets))
DESCRIBE secrets
SUMMARIZE secrets
SHOW TABLES
EXPLAIN SELECT * FROM secrets
PIVOT secrets ON word USING COUNT(*)
""".strip().splitlines()

RUNAWAYS = """
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT * FROM r
WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r) SELECT MAX(n) FROM r
SELECT pg_sleep(60)
SELECT SLEEP(60)
SELECT REPEAT('x', 1000000000) AS x
SELECT LPAD('x', 1000000000, 'y') AS x
SELECT zeroblob(1000000000) AS x
SELECT hex(randomblob(1000000000)) AS x
SELECT format('%1000000000s', 'x') AS x
SELECT COUNT(*) FROM generate_series(1, 1000000000000)
SELECT COUNT(*) FROM range(1000000000000)
SELECT printf('%.*c', 1000000000, 'x') AS x
""".strip().splitlines()

CROSS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3000) SELECT COUNT(*) FROM r AS a, r AS b, r AS c WHERE a.n + b.n = c.n"


def disguised(given: str, chance: random.Random) -> str:
    """The same wish in other clothes: comments, blanks, case, a harmless query before or behind it."""
    text = given
    match chance.randrange(9):
        case 0:
            text = f"/* a report */ {text}"
        case 1:
            text = f"-- a report\n{text}"
        case 2:
            text = f"SELECT id FROM orders; {text}"
        case 3:
            text = f"{text}; SELECT id FROM orders"
        case 4:
            text = "".join(mark.upper() if chance.random() < 0.5 else mark.lower() for mark in text)
        case 5:
            text = text.replace(" ", "\n\t ")
        case 6:
            text = text.replace(" ", "/**/", 2)
        case 7:
            text = f";;{text};--"
        case 8:
            text = f"SELECT 1; COMMIT; {text}"
    return text


def hostile(seed: int, count: int = 300) -> list[str]:
    """All by hand, and as many disguised ones as are missing from `count`."""
    chance = random.Random(seed)
    given = [*WRITES, *READS, *RUNAWAYS, CROSS]
    while len(given) < count:
        given.append(disguised(chance.choice([*WRITES, *READS]), chance))
    return given


def writing(seed: int, count: int = 150) -> list[str]:
    """Those that want to write."""
    chance = random.Random(seed)
    return [*WRITES, *[disguised(chance.choice(WRITES), chance) for _ in range(count - len(WRITES))]]
