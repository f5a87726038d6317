-- Schema 2: runs that move between processes. `pilothouse.` stands for the schema that was asked for.

-- The inbox of a run that another process drives: the answer is an ack, or why there is none.
ALTER TABLE pilothouse.commands ADD COLUMN answer bytea;
CREATE INDEX commands_unanswered ON pilothouse.commands (run, received_at) WHERE answer IS NULL;

CREATE INDEX runs_unfinished ON pilothouse.runs (binding, no) WHERE state <> 'terminal';

-- Deltas on their way, and who wants them. Neither is the record of anything: a crash of the server may empty both.
CREATE UNLOGGED TABLE pilothouse.told (
  run_id  text COLLATE "C" NOT NULL,
  fence   bigint NOT NULL,
  n       bigint NOT NULL,
  body    bytea NOT NULL,
  told_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, fence, n)
);
CREATE INDEX told_by_age ON pilothouse.told (told_at);

CREATE UNLOGGED TABLE pilothouse.follows (
  run_id        text COLLATE "C" NOT NULL,
  node          text COLLATE "C" NOT NULL,
  wanted_until  timestamptz NOT NULL,
  PRIMARY KEY (run_id, node)
);
