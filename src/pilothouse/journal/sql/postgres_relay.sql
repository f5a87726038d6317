-- What processes of one Postgres journal tell each other, by name. `pilothouse.` stands for the schema asked for.

-- name: post
INSERT INTO pilothouse.commands AS commands (run, command_id, body)
SELECT no, $2::text, $3::bytea FROM pilothouse.runs WHERE run_id = $1
ON CONFLICT (run, command_id) DO UPDATE SET command_id = excluded.command_id
RETURNING body = $3 AS same, answer

-- name: unanswered
SELECT run_id, command_id, body FROM pilothouse.commands JOIN pilothouse.runs ON runs.no = commands.run
WHERE run_id = ANY($1::text[]) AND answer IS NULL ORDER BY received_at, command_id

-- name: followed
SELECT DISTINCT run_id FROM pilothouse.follows WHERE run_id = ANY($1::text[]) AND wanted_until > clock_timestamp()

-- name: answer
UPDATE pilothouse.commands SET answer = $3
WHERE run = (SELECT no FROM pilothouse.runs WHERE run_id = $1) AND command_id = $2 AND answer IS NULL

-- name: answers
SELECT asked.run_id, asked.command_id, answer
FROM unnest($1::text[], $2::text[]) AS asked (run_id, command_id)
JOIN pilothouse.runs ON runs.run_id = asked.run_id
JOIN pilothouse.commands ON commands.run = runs.no AND commands.command_id = asked.command_id
WHERE answer IS NOT NULL

-- name: follow
INSERT INTO pilothouse.follows AS follows (run_id, node, wanted_until)
SELECT run_id, $2::text, clock_timestamp() + $3::bigint * interval '1 millisecond' FROM unnest($1::text[]) AS run_id
ORDER BY run_id
ON CONFLICT (run_id, node) DO UPDATE SET wanted_until = excluded.wanted_until

-- name: tell
WITH added AS (
  INSERT INTO pilothouse.told (run_id, fence, n, body)
  SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[]) ON CONFLICT DO NOTHING
)
SELECT pg_notify($5, '')

-- name: told
SELECT told.run_id, told.fence, told.n, told.body
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS place (run_id, fence, n)
JOIN pilothouse.told ON told.run_id = place.run_id AND (told.fence, told.n) > (place.fence, place.n)
ORDER BY told.run_id, told.fence, told.n

-- name: forget_told
DELETE FROM pilothouse.told WHERE told_at < clock_timestamp() - $1::bigint * interval '1 millisecond'

-- name: forget_follows
DELETE FROM pilothouse.follows WHERE wanted_until < clock_timestamp() - interval '1 minute'

-- name: stranded
SELECT no, run_id, fence, tenant, thread_id FROM pilothouse.runs LEFT JOIN pilothouse.owners ON owners.id = runs.owner
WHERE binding = $1 AND descriptor_digest = $2 AND no > $3 AND state NOT IN ('terminal', 'unknown') AND takeovers < $5
  AND (runs.owner IS NULL OR lease_until IS NULL OR lease_until <= clock_timestamp())
  AND (NOT resting OR EXISTS (SELECT 1 FROM pilothouse.commands WHERE commands.run = runs.no AND answer IS NULL))
ORDER BY no LIMIT $4

-- name: load
SELECT count(*), count(*) FILTER (WHERE thread_id = $2)
FROM pilothouse.runs JOIN pilothouse.owners ON owners.id = runs.owner
WHERE tenant = $1 AND state <> 'terminal' AND NOT resting AND lease_until > clock_timestamp()

-- name: dead
SELECT asked FROM unnest($1::text[]) AS asked LEFT JOIN pilothouse.owners ON owners.id = asked
WHERE lease_until IS NULL OR lease_until <= clock_timestamp()
