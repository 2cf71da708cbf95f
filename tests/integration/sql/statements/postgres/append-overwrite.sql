DELETE FROM "public"."t"
