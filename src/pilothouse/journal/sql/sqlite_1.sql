-- Schema 1 of a Pilothouse journal in SQLite.
-- Free text is only ever canonical JSON in a BLOB; TEXT holds checked ids and words of ours (JR-16).

-- What a list or a head needs of a run, its end included: neither reads a fact.
CREATE TABLE runs (
  no                INTEGER PRIMARY KEY,      -- order of creation
  run_id            TEXT NOT NULL UNIQUE,
  thread_id         TEXT NOT NULL,
  tenant            TEXT NOT NULL,
  binding           TEXT NOT NULL,
  descriptor_digest TEXT NOT NULL,
  spec_digest       TEXT NOT NULL,
  identity          TEXT NOT NULL,
  created_at_ms     INTEGER NOT NULL,
  parent_run        TEXT,
  origin_run        TEXT,
  lineage           BLOB,                     -- {"parent": …, "origin": …}
  seq               INTEGER NOT NULL,
  chain             BLOB NOT NULL,            -- 32 bytes: the chain value of fact `seq`
  fence             INTEGER NOT NULL,
  owner             TEXT,
  state             TEXT NOT NULL,
  status            TEXT NOT NULL,
  resting           INTEGER NOT NULL,
  loss_recorded     INTEGER NOT NULL,
  takeovers         INTEGER NOT NULL,
  updated_at_ms     INTEGER NOT NULL
) STRICT;
CREATE INDEX runs_of_thread ON runs (thread_id, no);
CREATE INDEX runs_of_parent ON runs (parent_run, no) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_of_origin ON runs (origin_run, no) WHERE origin_run IS NOT NULL;
CREATE INDEX runs_of_owner ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_by_status ON runs (status, no);
CREATE INDEX runs_of_tenant ON runs (tenant, status, no);

-- The immutable request of each run, apart from the row that every append rewrites.
CREATE TABLE specs (
  run  INTEGER PRIMARY KEY REFERENCES runs (no),
  body BLOB NOT NULL
) STRICT;

-- `key` is run number * 2^24 + seq: facts of a run lie together, and (run, seq) is unique without a second index.
CREATE TABLE facts (
  key      INTEGER PRIMARY KEY,
  at_ms    INTEGER NOT NULL,
  lane     TEXT NOT NULL,
  fence    INTEGER NOT NULL,
  kind     TEXT NOT NULL,
  event_id TEXT NOT NULL,
  chain    BLOB NOT NULL,
  body     BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX facts_by_event ON facts (key >> 24, event_id);

-- One lease for all runs of an owner: renewing it is one row, however many they are.
CREATE TABLE owners (
  id             TEXT PRIMARY KEY,
  machine        TEXT NOT NULL,
  pid            INTEGER NOT NULL,
  started        TEXT NOT NULL,
  lease_until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A blob is there once it is whole; its pieces come in transactions of their own.
CREATE TABLE blobs (
  no           INTEGER PRIMARY KEY,
  digest       TEXT NOT NULL UNIQUE,
  bytes        INTEGER NOT NULL,
  whole        INTEGER NOT NULL,
  stored_at_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE pieces (
  key  INTEGER PRIMARY KEY,                   -- blob number * 2^24 + index of the piece
  data BLOB NOT NULL
) STRICT;
CREATE TABLE blob_uses (
  digest TEXT NOT NULL,
  run    INTEGER NOT NULL REFERENCES runs (no),
  PRIMARY KEY (digest, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_uses_of_run ON blob_uses (run);

-- Reserved: the inbox of a run that another process drives. Nothing writes it yet.
CREATE TABLE commands (
  run            INTEGER NOT NULL REFERENCES runs (no),
  command_id     TEXT NOT NULL,
  body           BLOB NOT NULL,
  received_at_ms INTEGER NOT NULL,
  PRIMARY KEY (run, command_id)
) STRICT, WITHOUT ROWID;

-- `rank` is 0 for pinned threads, `age` is minus the time of the last update: their order is the order of the list.
CREATE TABLE threads (
  tenant    TEXT NOT NULL,
  thread_id TEXT NOT NULL,
  revision  INTEGER NOT NULL,
  archived  INTEGER NOT NULL,
  rank      INTEGER NOT NULL,
  age       INTEGER NOT NULL,
  body      BLOB NOT NULL,
  PRIMARY KEY (tenant, thread_id)
) STRICT;
CREATE INDEX threads_in_order ON threads (tenant, archived, rank, age, thread_id);
CREATE INDEX threads_by_id ON threads (thread_id);

-- What remains of purged runs: their ids cannot come back.
CREATE TABLE purged (
  run_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
