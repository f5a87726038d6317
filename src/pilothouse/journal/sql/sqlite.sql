-- The statements of the SQLite journal, by name.

-- name: place_to_create
SELECT (SELECT identity FROM runs WHERE run_id = ?1), EXISTS (SELECT 1 FROM purged WHERE run_id = ?1),
  (SELECT run_id FROM runs WHERE thread_id = ?2 ORDER BY no DESC LIMIT 1)

-- name: thread_head
SELECT run_id FROM runs WHERE thread_id = ? ORDER BY no DESC LIMIT 1

-- name: add_run
INSERT INTO runs (
  run_id, thread_id, tenant, binding, descriptor_digest, spec_digest, identity, created_at_ms, parent_run, origin_run,
  lineage, seq, chain, fence, owner, state, status, resting, loss_recorded, takeovers, updated_at_ms
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_spec
INSERT INTO specs (run, body) VALUES (?, ?)

-- name: add_fact
INSERT INTO facts (key, at_ms, lane, fence, kind, event_id, chain, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: remove_facts
DELETE FROM facts WHERE key BETWEEN ? AND ?

-- name: run_to_append
SELECT no, seq, chain, fence, status, state, owner FROM runs WHERE run_id = ?

-- name: move_head
UPDATE runs SET seq = ?, chain = ?, updated_at_ms = ?, resting = ?, loss_recorded = ?, takeovers = ? WHERE no = ?

-- name: move_head_and_status
UPDATE runs SET seq = ?1, chain = ?2, updated_at_ms = ?3, resting = ?4, loss_recorded = ?5, takeovers = ?6,
  status = ?7, state = ?8, owner = iif(?8 = 'terminal', NULL, owner) WHERE no = ?9

-- name: stored_event
SELECT lane, body FROM facts WHERE key >> 24 = ? AND event_id = ?

-- name: use_blob
INSERT OR IGNORE INTO blob_uses (digest, run) VALUES (?, ?)

-- name: lease
INSERT INTO owners (id, machine, pid, started, lease_until_ms) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET lease_until_ms = excluded.lease_until_ms
  WHERE lease_until_ms NOT BETWEEN excluded.lease_until_ms - ? AND excluded.lease_until_ms

-- name: renew
UPDATE owners SET lease_until_ms = ? WHERE id = ?

-- name: take_over
UPDATE runs SET fence = fence + 1, owner = ? WHERE no = ?

-- name: release_run
UPDATE runs SET owner = NULL WHERE run_id = ? AND owner = ?

-- name: release_all
UPDATE runs INDEXED BY runs_at_work SET owner = NULL WHERE owner = ? AND state <> 'terminal'

-- name: forget_owner
DELETE FROM owners WHERE id = ?

-- name: forget_owners
DELETE FROM owners WHERE lease_until_ms < ? AND id NOT IN
  (SELECT owner FROM runs INDEXED BY runs_at_work WHERE state <> 'terminal' AND owner IS NOT NULL)

-- name: head
SELECT no, run_id, binding, descriptor_digest, spec_digest, identity, created_at_ms, seq, chain, fence, owner,
  state, status, resting, loss_recorded, takeovers, updated_at_ms, body, machine, pid, started, lease_until_ms
FROM runs LEFT JOIN specs ON specs.run = runs.no LEFT JOIN owners ON owners.id = runs.owner
WHERE run_id = ?

-- name: run_to_read
SELECT no, seq, chain, spec_digest FROM runs WHERE run_id = ?

-- name: chain_at
SELECT chain FROM facts WHERE key = ?

-- name: facts
SELECT key & 0xffffff, at_ms, lane, fence, kind, event_id, chain, body FROM facts WHERE key > ? AND key <= ? ORDER BY key LIMIT ?

-- name: facts_of_kinds
SELECT key & 0xffffff, at_ms, lane, fence, kind, event_id, chain, body,
  (SELECT chain FROM facts AS before WHERE before.key = facts.key - 1)
FROM facts WHERE key > ? AND key <= ? AND kind IN (SELECT value FROM json_each(?)) ORDER BY key LIMIT ?

-- name: fact_of_event
SELECT key & 0xffffff, at_ms, lane, fence, kind, event_id, chain, body,
  (SELECT chain FROM facts AS before WHERE before.key = facts.key - 1)
FROM facts WHERE key >> 24 = ? AND event_id = ?

-- name: seqs
SELECT run_id, seq FROM runs WHERE run_id IN (SELECT value FROM json_each(?))

-- name: blob
SELECT no, bytes, whole FROM blobs WHERE digest = ?

-- name: add_blob
INSERT INTO blobs (digest, bytes, whole, stored_at_ms) VALUES (?, ?, 0, ?)

-- name: add_piece
INSERT OR IGNORE INTO pieces (key, data) VALUES (?, ?)

-- name: blob_is_whole
UPDATE blobs SET whole = 1 WHERE no = ?

-- name: pieces
SELECT data FROM pieces WHERE key BETWEEN ? AND ? ORDER BY key

-- name: remove_pieces
DELETE FROM pieces WHERE key BETWEEN ? AND ?

-- name: remove_blob
DELETE FROM blobs WHERE no = ?

-- name: unused_blobs
SELECT no FROM blobs WHERE NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_uses.digest = blobs.digest)
  AND (stored_at_ms < ? OR digest IN (SELECT value FROM json_each(?)))

-- name: runs_to_purge
SELECT no, run_id, seq, state, status, resting, loss_recorded, takeovers, updated_at_ms, owner, machine, pid, started,
  lease_until_ms
FROM runs LEFT JOIN owners ON owners.id = runs.owner WHERE thread_id = ?

-- name: blobs_of_run
SELECT digest FROM blob_uses WHERE run = ?

-- name: remove_uses
DELETE FROM blob_uses WHERE run = ?

-- name: remove_commands
DELETE FROM commands WHERE run = ?

-- name: remove_spec
DELETE FROM specs WHERE run = ?

-- name: remove_run
DELETE FROM runs WHERE no = ?

-- name: mark_purged
INSERT OR IGNORE INTO purged (run_id) VALUES (?)

-- name: thread
SELECT body FROM threads WHERE tenant = ? AND thread_id = ?

-- name: put_thread
INSERT INTO threads (tenant, thread_id, revision, archived, rank, age, body) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, thread_id) DO UPDATE SET revision = excluded.revision, archived = excluded.archived,
  rank = excluded.rank, age = excluded.age, body = excluded.body

-- name: threads
SELECT body FROM threads WHERE tenant = ? AND archived = ? AND (rank, age, thread_id) > (?, ?, ?)
ORDER BY rank, age, thread_id

-- name: remove_thread
DELETE FROM threads WHERE tenant = ? AND thread_id = ?

-- name: remove_threads
DELETE FROM threads WHERE thread_id = ?
