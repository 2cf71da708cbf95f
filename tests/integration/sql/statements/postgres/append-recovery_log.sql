BEGIN ISOLATION LEVEL REPEATABLE READ
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
SELECT number FROM "outfall"."recovery_entries" WHERE log = %s ORDER BY number
SELECT current_setting('fsync')
CREATE SCHEMA "outfall"
CREATE TABLE "outfall"."recovery_entries" (log text NOT NULL, number bigint NOT NULL, server text NOT NULL, writer text NOT NULL, pieces integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (log, number))
CREATE TABLE "outfall"."recovery_blobs" (log text NOT NULL, name text NOT NULL, piece integer NOT NULL, generation bigint, data bytea NOT NULL, PRIMARY KEY (log, name, piece))
SELECT number, server FROM "outfall"."recovery_entries" WHERE log = %s AND number <> %s ORDER BY number DESC LIMIT 1
INSERT INTO "outfall"."recovery_entries" (log, number, server, writer, pieces, data) VALUES (%s, %s, %s, %s, %s, %s)
SELECT DISTINCT name FROM "outfall"."recovery_blobs" WHERE log = %s AND generation < %s
SELECT server FROM "outfall"."recovery_entries" WHERE log = %s AND number = %s FOR UPDATE
SELECT number, pieces, data FROM "outfall"."recovery_entries" WHERE log = %s AND number BETWEEN %s AND %s
DELETE FROM "outfall"."recovery_entries" WHERE log = %s AND number IN (%s, %s, %s)
DELETE FROM "outfall"."recovery_blobs" WHERE log = %s AND name IN (%s, %s, %s)
