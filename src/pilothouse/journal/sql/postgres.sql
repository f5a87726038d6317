-- The statements of the Postgres journal, by name. `pilothouse.` stands for the schema that was asked for.

-- name: create
WITH head AS (
  INSERT INTO pilothouse.thread_heads AS heads (thread_id, run_id)
  SELECT $2::text, $1::text
  WHERE ($22::boolean OR $23::text IS NULL OR EXISTS (SELECT 1 FROM pilothouse.thread_heads WHERE thread_id = $2))
    AND NOT EXISTS (SELECT 1 FROM pilothouse.purged WHERE purged.run_id = $1)
  ON CONFLICT (thread_id) DO UPDATE SET run_id = excluded.run_id WHERE $22 OR heads.run_id = $23
  RETURNING 1
), run AS (
  INSERT INTO pilothouse.runs (
    run_id, thread_id, tenant, binding, descriptor_digest, spec_digest, identity, created_at_ms, parent_run,
    origin_run, lineage, seq, chain, fence, owner, state, status, resting, loss_recorded, takeovers, updated_at_ms
  )
  SELECT $1, $2, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bigint, $9::text, $10::text, $11::bytea,
    $12::bigint, $13::bytea, $14::bigint, $15::text, $16::text, $17::text, $18::boolean, $19::boolean, $20::integer,
    $21::bigint
  FROM head
  RETURNING no
), spec AS (
  INSERT INTO pilothouse.specs (run, body) SELECT no, $24::bytea FROM run
), added AS (
  INSERT INTO pilothouse.facts (run, seq, at_ms, lane, fence, kind, event_id, chain, body)
  SELECT no, fact.* FROM run, unnest(
    $25::bigint[], $26::bigint[], $27::text[], $28::bigint[], $29::text[], $30::bytea[], $31::bytea[], $32::bytea[]
  ) AS fact
), used AS (
  INSERT INTO pilothouse.blob_uses (digest, run) SELECT digest, no FROM run, unnest($33::text[]) AS digest
), leased AS (
  INSERT INTO pilothouse.owners AS owners (id, machine, pid, started, lease_until)
  SELECT $15, $34::text, $35::bigint, $36::text, clock_timestamp() + $37::bigint * interval '1 millisecond' FROM run
  WHERE $15 IS NOT NULL
  ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until
)
SELECT no FROM run

-- name: append
WITH wanted AS (
  SELECT * FROM unnest(
    $1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[], $7::text[], $8::text[],
    $9::boolean[], $10::boolean[], $11::integer[], $12::bigint[]
  ) AS wanted (
    run_id, expected_seq, expected_chain, fence, seq, chain, state, status, resting, loss_recorded, takeovers,
    updated_at_ms
  )
), offered AS (
  SELECT * FROM unnest(
    $13::text[], $14::bigint[], $15::bigint[], $16::text[], $17::bigint[], $18::text[], $19::bytea[], $20::bytea[],
    $21::bytea[]
  ) AS offered (run_id, seq, at_ms, lane, fence, kind, event_id, chain, body)
), moved AS (
  UPDATE pilothouse.runs AS runs
  SET seq = wanted.seq, chain = wanted.chain, state = wanted.state, status = wanted.status, resting = wanted.resting,
    loss_recorded = wanted.loss_recorded, takeovers = wanted.takeovers, updated_at_ms = wanted.updated_at_ms,
    owner = CASE wanted.state WHEN 'terminal' THEN NULL ELSE runs.owner END
  FROM wanted
  WHERE runs.run_id = wanted.run_id AND runs.seq = wanted.expected_seq AND runs.chain = wanted.expected_chain
    AND runs.fence = wanted.fence AND NOT EXISTS (
      SELECT 1 FROM offered JOIN pilothouse.facts ON facts.run = runs.no AND facts.event_id = offered.event_id
      WHERE offered.run_id = wanted.run_id
    )
  RETURNING runs.no, runs.run_id
), added AS (
  INSERT INTO pilothouse.facts (run, seq, at_ms, lane, fence, kind, event_id, chain, body)
  SELECT moved.no, offered.seq, at_ms, lane, fence, kind, event_id, chain, body
  FROM offered JOIN moved ON moved.run_id = offered.run_id
), used AS (
  INSERT INTO pilothouse.blob_uses (digest, run)
  SELECT uses.digest, moved.no FROM unnest($22::text[], $23::text[]) AS uses (run_id, digest)
  JOIN moved ON moved.run_id = uses.run_id
  ON CONFLICT DO NOTHING
)
SELECT run_id FROM moved

-- name: run_to_append
SELECT no, seq, chain, fence FROM pilothouse.runs WHERE run_id = $1

-- name: run_to_create
SELECT identity FROM pilothouse.runs WHERE run_id = $1

-- name: is_purged
SELECT 1 FROM pilothouse.purged WHERE run_id = $1

-- name: stored_events
SELECT event_id, lane, body FROM pilothouse.facts WHERE run = $1 AND event_id = ANY($2::bytea[])

-- name: thread_head
SELECT run_id FROM pilothouse.thread_heads WHERE thread_id = $1

-- name: head
SELECT no, runs.run_id, binding, descriptor_digest, spec_digest, identity, created_at_ms, seq, chain, fence, owner,
  state, status, resting, loss_recorded, takeovers, updated_at_ms, body, machine, pid, started,
  (extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint
FROM pilothouse.runs LEFT JOIN pilothouse.specs ON specs.run = runs.no
  LEFT JOIN pilothouse.owners ON owners.id = runs.owner
WHERE run_id = $1

-- name: lock_run
SELECT 1 FROM pilothouse.runs WHERE run_id = $1 FOR UPDATE

-- name: entries
SELECT no, run_id, thread_id, tenant, binding, descriptor_digest, created_at_ms, lineage, seq,
  state, status, resting, loss_recorded, takeovers, updated_at_ms, owner, machine, pid, started,
  (extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint
FROM pilothouse.runs LEFT JOIN pilothouse.owners ON owners.id = runs.owner
WHERE {where} ORDER BY no DESC LIMIT {limit}

-- Beyond the bytes of a page a row comes without its body: it says only that there is more.

-- name: facts
SELECT run.seq, run.chain, run.spec_digest, fact.*
FROM pilothouse.runs AS run LEFT JOIN LATERAL (
  SELECT seq, at_ms, lane, fence, kind, event_id, chain,
    CASE WHEN sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) <= $4 THEN body END
  FROM (
    SELECT * FROM pilothouse.facts WHERE facts.run = run.no AND facts.seq >= $2 AND facts.seq <= run.seq
    ORDER BY seq LIMIT $3
  ) AS page ORDER BY seq
) AS fact ON TRUE
WHERE run.run_id = $1

-- name: facts_of_kinds
SELECT run.seq, run.chain, run.spec_digest,
  (SELECT chain FROM pilothouse.facts AS last WHERE last.run = run.no AND last.seq = run.seq), fact.*
FROM pilothouse.runs AS run LEFT JOIN LATERAL (
  SELECT seq, at_ms, lane, fence, kind, event_id, chain,
    CASE WHEN sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) <= $4 THEN body END,
    (SELECT chain FROM pilothouse.facts AS earlier WHERE earlier.run = page.run AND earlier.seq = page.seq - 1)
  FROM (
    SELECT * FROM pilothouse.facts
    WHERE facts.run = run.no AND facts.seq > $2 AND facts.seq <= run.seq AND kind = ANY($5::text[])
    ORDER BY seq LIMIT $3
  ) AS page ORDER BY seq
) AS fact ON TRUE
WHERE run.run_id = $1

-- name: fact_of_event
SELECT run.spec_digest, fact.seq, at_ms, lane, fact.fence, kind, event_id, fact.chain, body,
  (SELECT chain FROM pilothouse.facts AS earlier WHERE earlier.run = run.no AND earlier.seq = fact.seq - 1)
FROM pilothouse.runs AS run JOIN pilothouse.facts AS fact ON fact.run = run.no
WHERE run_id = $1 AND event_id = $2

-- name: seqs
SELECT run_id, seq FROM pilothouse.runs WHERE run_id = ANY($1::text[])

-- name: take_over
UPDATE pilothouse.runs SET fence = fence + 1, owner = $2 WHERE no = $1

-- name: lease
INSERT INTO pilothouse.owners AS owners (id, machine, pid, started, lease_until)
VALUES ($1, $2, $3, $4, clock_timestamp() + $5::bigint * interval '1 millisecond')
ON CONFLICT (id) DO UPDATE SET lease_until = excluded.lease_until

-- name: renew
UPDATE pilothouse.owners SET lease_until = clock_timestamp() + $2::bigint * interval '1 millisecond' WHERE id = $1

-- name: release_run
UPDATE pilothouse.runs SET owner = NULL WHERE run_id = $1 AND owner = $2

-- name: release_all
UPDATE pilothouse.runs SET owner = NULL WHERE owner = $1

-- name: forget_owners
DELETE FROM pilothouse.owners WHERE (id = $1 OR lease_until < clock_timestamp() - interval '1 day')
  AND NOT EXISTS (SELECT 1 FROM pilothouse.runs WHERE runs.owner = owners.id)

-- name: put_blob
INSERT INTO pilothouse.blobs (digest, data) VALUES ($1, $2) ON CONFLICT DO NOTHING

-- name: has_blob
SELECT 1 FROM pilothouse.blobs WHERE digest = $1

-- name: blob
SELECT data FROM pilothouse.blobs WHERE digest = $1

-- name: runs_to_purge
SELECT no, run_id, seq, state, status, resting, loss_recorded, takeovers, updated_at_ms, owner, machine, pid, started,
  (extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint
FROM pilothouse.runs LEFT JOIN pilothouse.owners ON owners.id = runs.owner
WHERE thread_id = $1 ORDER BY no FOR UPDATE OF runs

-- name: blobs_of_runs
SELECT DISTINCT digest FROM pilothouse.blob_uses WHERE run = ANY($1::bigint[])

-- name: remove_uses
DELETE FROM pilothouse.blob_uses WHERE run = ANY($1::bigint[])

-- name: remove_commands
DELETE FROM pilothouse.commands WHERE run = ANY($1::bigint[])

-- name: remove_facts
DELETE FROM pilothouse.facts WHERE run = ANY($1::bigint[])

-- name: remove_specs
DELETE FROM pilothouse.specs WHERE run = ANY($1::bigint[])

-- name: remove_runs
DELETE FROM pilothouse.runs WHERE no = ANY($1::bigint[])

-- name: mark_purged
INSERT INTO pilothouse.purged (run_id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING

-- name: remove_blobs
DELETE FROM pilothouse.blobs WHERE (digest = ANY($1::text[]) OR stored_at < clock_timestamp() - interval '1 hour')
  AND NOT EXISTS (SELECT 1 FROM pilothouse.blob_uses WHERE blob_uses.digest = blobs.digest)

-- name: remove_thread_head
DELETE FROM pilothouse.thread_heads WHERE thread_id = $1

-- name: thread
SELECT body FROM pilothouse.threads WHERE tenant = $1 AND thread_id = $2

-- name: add_thread
INSERT INTO pilothouse.threads (tenant, thread_id, revision, archived, rank, age, body)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING 1

-- name: change_thread
UPDATE pilothouse.threads SET revision = $3, archived = $4, rank = $5, age = $6, body = $7
WHERE tenant = $1 AND thread_id = $2 AND revision = $8 RETURNING 1

-- name: threads
SELECT body FROM pilothouse.threads WHERE tenant = $1 AND archived = $2 AND (rank, age, thread_id) > ($3, $4, $5)
ORDER BY rank, age, thread_id LIMIT $6

-- name: remove_thread
DELETE FROM pilothouse.threads WHERE tenant = $1 AND thread_id = $2

-- name: remove_threads
DELETE FROM pilothouse.threads WHERE thread_id = $1
