CREATE TABLE "public"."t" ("id" bigint, "name" text, "version" bigint)
