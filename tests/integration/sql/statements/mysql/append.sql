SET sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00', unique_checks = 1, foreign_key_checks = 1, sql_safe_updates = 0, sql_big_selects = 1, sql_select_limit = 1234567890, max_sort_length = 65536, sort_buffer_size = 4194304
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SET lock_wait_timeout = %s
SELECT GET_LOCK(%s, %s)
CREATE TABLE IF NOT EXISTS `db`.ledger (incarnation VARCHAR(180) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, target VARCHAR(180) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, step VARCHAR(400) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, generation bigint NOT NULL, begun bigint NOT NULL, epoch bigint, revoked bigint NOT NULL DEFAULT 0, `rows` bigint NOT NULL DEFAULT 0, changed TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), token text, published_token text, PRIMARY KEY (incarnation, target)) ENGINE = InnoDB CHARACTER SET utf8mb4
CREATE TABLE IF NOT EXISTS `db`.attempts (stage bigint PRIMARY KEY, staging VARCHAR(180) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, incarnation VARCHAR(180) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, generation bigint NOT NULL, epoch bigint NOT NULL, attempt bigint NOT NULL, `rows` bigint NOT NULL, staged TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), KEY (staging)) ENGINE = InnoDB CHARACTER SET utf8mb4
DO RELEASE_LOCK(%s)
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SET lock_wait_timeout = %s
SELECT GET_LOCK(%s, %s)
CREATE TABLE `db`.`staging_t_sink_0123456789ab` (`_outfall_stage` BIGINT NOT NULL, `_outfall_row` BIGINT NOT NULL, `id` bigint NULL, `name` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, `version` bigint NULL, PRIMARY KEY (`_outfall_stage`, `_outfall_row`)) ENGINE = InnoDB CHARACTER SET utf8mb4
DO RELEASE_LOCK(%s)
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SELECT generation, begun, epoch, revoked, token, published_token FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s
SELECT generation, begun, epoch, revoked, token, published_token FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s
SELECT epoch FROM `db`.`ledger` WHERE (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s AND incarnation <> %(incarnation)s AND epoch IS NOT NULL ORDER BY changed DESC LIMIT 1
INSERT INTO `db`.`ledger` (incarnation, target, step, generation, begun) VALUES (%(incarnation)s, %(target)s, %(step)s, 0, -1) ON DUPLICATE KEY UPDATE begun = begun
SELECT generation, begun, epoch, revoked, token, published_token FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s FOR UPDATE
UPDATE `db`.`ledger` SET generation = %(generation)s, begun = %(begun)s, token = %(token)s, changed = now() WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s
COMMIT
SET wait_timeout = 7884000, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SAVEPOINT outfall_load
LOAD DATA LOCAL INFILE 'outfall' INTO TABLE `db`.`staging_t_sink_0123456789ab` CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' (`_outfall_stage`, `_outfall_row`, `id`, `name`, `version`)
INSERT INTO `db`.`attempts` (stage, staging, incarnation, generation, epoch, attempt, `rows`) VALUES (%s, %s, %s, %s, %s, %s, %s)
COMMIT
SET wait_timeout = 7884000, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SAVEPOINT outfall_load
LOAD DATA LOCAL INFILE 'outfall' INTO TABLE `db`.`staging_t_sink_0123456789ab` CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' (`_outfall_stage`, `_outfall_row`, `id`, `name`, `version`)
INSERT INTO `db`.`attempts` (stage, staging, incarnation, generation, epoch, attempt, `rows`) VALUES (%s, %s, %s, %s, %s, %s, %s)
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SELECT generation, begun, epoch, revoked, token, published_token FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s FOR UPDATE
EXPLAIN INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE false
SAVEPOINT outfall_1
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) ORDER BY `_outfall_stage`, `_outfall_row`
RELEASE SAVEPOINT outfall_1
UPDATE `db`.`ledger` SET generation = %(generation)s, epoch = %(epoch)s, begun = greatest(begun, %(epoch)s), `rows` = `rows` + %(rows)s, token = %(token)s, published_token = %(token)s, changed = now() WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s
DELETE FROM `db`.`attempts` WHERE stage IN (1234567890)
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SELECT stage FROM `db`.`attempts` WHERE staging = %(staging)s AND (incarnation = %(incarnation)s AND generation < %(generation)s OR NOT EXISTS (SELECT 1 FROM `db`.`ledger` AS ledger WHERE ledger.incarnation = `db`.`attempts`.incarnation))
SELECT DISTINCT `_outfall_stage` FROM `db`.`staging_t_sink_0123456789ab` WHERE NOT EXISTS (SELECT 1 FROM `db`.`attempts` AS live WHERE live.stage = `db`.`staging_t_sink_0123456789ab`.`_outfall_stage`)
DELETE FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890)
DELETE FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890)
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SELECT generation, begun, epoch, revoked, token, published_token FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SELECT generation, begun, epoch, revoked, token, published_token FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s FOR UPDATE
UPDATE `db`.`ledger` SET generation = %(generation)s, begun = %(begun)s, token = %(token)s, changed = now() WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s
COMMIT
SET wait_timeout = 7884000, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SAVEPOINT outfall_load
LOAD DATA LOCAL INFILE 'outfall' INTO TABLE `db`.`staging_t_sink_0123456789ab` CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' (`_outfall_stage`, `_outfall_row`, `id`, `name`, `version`)
INSERT INTO `db`.`attempts` (stage, staging, incarnation, generation, epoch, attempt, `rows`) VALUES (%s, %s, %s, %s, %s, %s, %s)
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SELECT generation, begun, epoch, revoked, token, published_token FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s FOR UPDATE
EXPLAIN INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE false
SAVEPOINT outfall_1
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) ORDER BY `_outfall_stage`, `_outfall_row`
RELEASE SAVEPOINT outfall_1
UPDATE `db`.`ledger` SET generation = %(generation)s, epoch = %(epoch)s, begun = greatest(begun, %(epoch)s), `rows` = `rows` + %(rows)s, token = %(token)s, published_token = %(token)s, changed = now() WHERE incarnation = %(incarnation)s AND (target = %(target)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target)s)) AND step = %(step)s
DELETE FROM `db`.`attempts` WHERE stage IN (1234567890)
COMMIT
SET wait_timeout = 60, innodb_lock_wait_timeout = 600, lock_wait_timeout = 600, max_time = 1
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
START TRANSACTION
SELECT stage FROM `db`.`attempts` WHERE staging = %(staging)s AND (incarnation = %(incarnation)s AND generation < %(generation)s OR NOT EXISTS (SELECT 1 FROM `db`.`ledger` AS ledger WHERE ledger.incarnation = `db`.`attempts`.incarnation))
SELECT DISTINCT `_outfall_stage` FROM `db`.`staging_t_sink_0123456789ab` WHERE NOT EXISTS (SELECT 1 FROM `db`.`attempts` AS live WHERE live.stage = `db`.`staging_t_sink_0123456789ab`.`_outfall_stage`)
DELETE FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890)
COMMIT
