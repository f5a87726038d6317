-- Schema 1 of a Pilothouse journal in Postgres. `pilothouse.` stands for the schema that was asked for.
-- Bodies, event ids, digests of chains are bytea: text cannot hold NUL, and jsonb would write them anew (JR-21).

CREATE TABLE pilothouse.runs (
  no                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id            text COLLATE "C" NOT NULL UNIQUE,
  thread_id         text COLLATE "C" NOT NULL,
  tenant            text COLLATE "C" NOT NULL,
  binding           text COLLATE "C" NOT NULL,
  descriptor_digest text COLLATE "C" NOT NULL,
  spec_digest       text COLLATE "C" NOT NULL,
  identity          text COLLATE "C" NOT NULL,
  created_at_ms     bigint NOT NULL,
  parent_run        text COLLATE "C",
  origin_run        text COLLATE "C",
  lineage           bytea,
  seq               bigint NOT NULL,
  chain             bytea NOT NULL,
  fence             bigint NOT NULL,
  owner             text COLLATE "C",
  state             text COLLATE "C" NOT NULL,
  status            text COLLATE "C" NOT NULL,
  resting           boolean NOT NULL,
  loss_recorded     boolean NOT NULL,
  takeovers         integer NOT NULL,
  updated_at_ms     bigint NOT NULL
) WITH (fillfactor = 60);  -- room to move the head within the page, without touching an index
CREATE INDEX runs_of_thread ON pilothouse.runs (thread_id, no);
CREATE INDEX runs_of_parent ON pilothouse.runs (parent_run, no) WHERE parent_run IS NOT NULL;
CREATE INDEX runs_of_origin ON pilothouse.runs (origin_run, no) WHERE origin_run IS NOT NULL;
CREATE INDEX runs_of_owner ON pilothouse.runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_by_status ON pilothouse.runs (status, no);
CREATE INDEX runs_of_tenant ON pilothouse.runs (tenant, status, no);

CREATE TABLE pilothouse.specs (
  run  bigint PRIMARY KEY REFERENCES pilothouse.runs (no),
  body bytea NOT NULL
);

CREATE TABLE pilothouse.facts (
  run      bigint NOT NULL,
  seq      bigint NOT NULL,
  at_ms    bigint NOT NULL,
  lane     text COLLATE "C" NOT NULL,
  fence    bigint NOT NULL,
  kind     text COLLATE "C" NOT NULL,
  event_id bytea NOT NULL,
  chain    bytea NOT NULL,
  body     bytea NOT NULL,
  PRIMARY KEY (run, seq),
  UNIQUE (run, event_id)
);

-- The run created last in a thread; its row is the lock under which a thread grows.
CREATE TABLE pilothouse.thread_heads (
  thread_id text COLLATE "C" PRIMARY KEY,
  run_id    text COLLATE "C" NOT NULL
);

CREATE TABLE pilothouse.owners (
  id          text COLLATE "C" PRIMARY KEY,
  machine     text NOT NULL,
  pid         bigint NOT NULL,
  started     text NOT NULL,
  lease_until timestamptz NOT NULL  -- by this server's clock, nobody else's (JR-24)
) WITH (fillfactor = 60);

CREATE TABLE pilothouse.blobs (
  digest    text COLLATE "C" PRIMARY KEY,
  data      bytea NOT NULL,
  stored_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE pilothouse.blobs ALTER COLUMN data SET STORAGE EXTERNAL;  -- mostly compressed already
CREATE TABLE pilothouse.blob_uses (
  digest text COLLATE "C" NOT NULL,
  run    bigint NOT NULL REFERENCES pilothouse.runs (no),
  PRIMARY KEY (digest, run)
);
CREATE INDEX blob_uses_of_run ON pilothouse.blob_uses (run);

-- Reserved: the inbox of a run that another process drives. Nothing writes it yet.
CREATE TABLE pilothouse.commands (
  run         bigint NOT NULL REFERENCES pilothouse.runs (no),
  command_id  text COLLATE "C" NOT NULL,
  body        bytea NOT NULL,
  received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run, command_id)
);

-- `rank` is 0 for pinned threads, `age` is minus the time of the last update: their order is the order of the list.
CREATE TABLE pilothouse.threads (
  tenant    text COLLATE "C" NOT NULL,
  thread_id text COLLATE "C" NOT NULL,
  revision  bigint NOT NULL,
  archived  boolean NOT NULL,
  rank      integer NOT NULL,
  age       bigint NOT NULL,
  body      bytea NOT NULL,
  PRIMARY KEY (tenant, thread_id)
);
CREATE INDEX threads_in_order ON pilothouse.threads (tenant, archived, rank, age, thread_id);
CREATE INDEX threads_by_id ON pilothouse.threads (thread_id);

CREATE TABLE pilothouse.purged (
  run_id text COLLATE "C" PRIMARY KEY
);
