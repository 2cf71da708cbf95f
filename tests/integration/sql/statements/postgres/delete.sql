EXPLAIN DELETE FROM "public"."t" AS target USING (SELECT DISTINCT "id" FROM "outfall"."staging_t_sink_0123456789ab" WHERE false) AS removed WHERE target."id" = removed."id"
DELETE FROM "public"."t" AS target USING (SELECT DISTINCT "id" FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" = ANY(%(stages)s)) AS removed WHERE target."id" = removed."id"
SELECT "_outfall_stage", count(*) FROM "outfall"."staging_t_sink_0123456789ab" WHERE "_outfall_stage" IN (1234567890) GROUP BY 1
