BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT current_setting('max_connections')::int
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT set_config('lock_timeout', %s, true)
CREATE SCHEMA IF NOT EXISTS "outfall"
CREATE TABLE IF NOT EXISTS "outfall".ledger (incarnation text NOT NULL, target text NOT NULL, step text NOT NULL, generation bigint NOT NULL, begun bigint NOT NULL, epoch bigint, revoked bigint NOT NULL DEFAULT 0, "rows" bigint NOT NULL DEFAULT 0, changed timestamptz NOT NULL DEFAULT now(), token text, published_token text, PRIMARY KEY (incarnation, target))
CREATE TABLE IF NOT EXISTS "outfall".attempts (stage bigint PRIMARY KEY, staging text NOT NULL, incarnation text NOT NULL, generation bigint NOT NULL, epoch bigint NOT NULL, attempt bigint NOT NULL, "rows" bigint NOT NULL, staged timestamptz NOT NULL DEFAULT now())
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT set_config('lock_timeout', %s, true)
CREATE UNLOGGED TABLE "outfall"."staging_t_sink_0123456789ab" ("_outfall_stage" bigint, "id" bigint, "name" text, "version" bigint)
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT generation, begun, epoch, revoked, token, published_token FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s
SELECT generation, begun, epoch, revoked, token, published_token FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s
SELECT epoch FROM "outfall"."ledger" WHERE (target = %(target)s) AND step = %(step)s AND incarnation <> %(incarnation)s AND epoch IS NOT NULL ORDER BY changed DESC LIMIT 1
INSERT INTO "outfall"."ledger" (incarnation, target, step, generation, begun) VALUES (%(incarnation)s, %(target)s, %(step)s, 0, -1) ON CONFLICT DO NOTHING
SELECT generation, begun, epoch, revoked, token, published_token FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s FOR UPDATE
UPDATE "outfall"."ledger" SET generation = %(generation)s, begun = %(begun)s, token = %(token)s, changed = now() WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
INSERT INTO "outfall"."attempts" (stage, staging, incarnation, generation, epoch, attempt, "rows") VALUES (%s, %s, %s, %s, %s, %s, %s)
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
INSERT INTO "outfall"."attempts" (stage, staging, incarnation, generation, epoch, attempt, "rows") VALUES (%s, %s, %s, %s, %s, %s, %s)
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT generation, begun, epoch, revoked, token, published_token FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s FOR UPDATE
EXPLAIN INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_t_sink_0123456789ab" WHERE false
SAVEPOINT outfall_1
INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s)
RELEASE SAVEPOINT outfall_1
UPDATE "outfall"."ledger" SET generation = %(generation)s, epoch = %(epoch)s, begun = greatest(begun, %(epoch)s), "rows" = "rows" + %(rows)s, token = %(token)s, published_token = %(token)s, changed = now() WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s
DELETE FROM "outfall"."attempts" WHERE stage IN (1234567890)
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT stage FROM "outfall"."attempts" WHERE staging = %(staging)s AND (incarnation = %(incarnation)s AND generation < %(generation)s OR NOT EXISTS (SELECT 1 FROM "outfall"."ledger" AS ledger WHERE ledger.incarnation = "outfall"."attempts".incarnation))
DELETE FROM "outfall"."staging_t_sink_0123456789ab" WHERE NOT EXISTS (SELECT 1 FROM "outfall"."attempts" AS live WHERE live.stage = "outfall"."staging_t_sink_0123456789ab"."_outfall_stage")
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT generation, begun, epoch, revoked, token, published_token FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT generation, begun, epoch, revoked, token, published_token FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s FOR UPDATE
UPDATE "outfall"."ledger" SET generation = %(generation)s, begun = %(begun)s, token = %(token)s, changed = now() WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
INSERT INTO "outfall"."attempts" (stage, staging, incarnation, generation, epoch, attempt, "rows") VALUES (%s, %s, %s, %s, %s, %s, %s)
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT generation, begun, epoch, revoked, token, published_token FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s FOR UPDATE
EXPLAIN INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_t_sink_0123456789ab" WHERE false
SAVEPOINT outfall_1
INSERT INTO "public"."t" ("id", "name", "version") SELECT "id", "name", "version" FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s)
RELEASE SAVEPOINT outfall_1
UPDATE "outfall"."ledger" SET generation = %(generation)s, epoch = %(epoch)s, begun = greatest(begun, %(epoch)s), "rows" = "rows" + %(rows)s, token = %(token)s, published_token = %(token)s, changed = now() WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s
DELETE FROM "outfall"."attempts" WHERE stage IN (1234567890)
COMMIT
BEGIN ISOLATION LEVEL READ COMMITTED
SELECT set_config(%s, %s, true), ...
SELECT stage FROM "outfall"."attempts" WHERE staging = %(staging)s AND (incarnation = %(incarnation)s AND generation < %(generation)s OR NOT EXISTS (SELECT 1 FROM "outfall"."ledger" AS ledger WHERE ledger.incarnation = "outfall"."attempts".incarnation))
DELETE FROM "outfall"."staging_t_sink_0123456789ab" WHERE NOT EXISTS (SELECT 1 FROM "outfall"."attempts" AS live WHERE live.stage = "outfall"."staging_t_sink_0123456789ab"."_outfall_stage")
COMMIT
