CREATE TABLE `db`.`refused` (`_outfall_stage` bigint NOT NULL, `row` longtext NOT NULL, `reason` longtext NOT NULL, `code` longtext NULL, `excerpt` longtext NULL, `step` longtext NOT NULL, `epoch` bigint NULL, `part` longtext NULL, `time` datetime(6) NOT NULL, `_outfall_id` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE, PRIMARY KEY (`_outfall_stage`, `_outfall_id`), KEY (`_outfall_id`)) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
CREATE TABLE `dead` (`row` longtext NOT NULL, `reason` longtext NOT NULL, `code` longtext NULL, `excerpt` longtext NULL, `step` longtext NOT NULL, `epoch` bigint NULL, `part` longtext NULL, `time` datetime(6) NOT NULL, `_outfall_id` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE, PRIMARY KEY (`_outfall_id`), KEY (`_outfall_id`)) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
CREATE TABLE `db`.`staging_t_sink_0123456789ab` (`_outfall_stage` BIGINT NOT NULL, `_outfall_row` BIGINT NOT NULL, `id` bigint NULL, `name` varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, `version` bigint NULL, PRIMARY KEY (`_outfall_stage`, `_outfall_row`)) ENGINE = InnoDB CHARACTER SET utf8mb4
ROLLBACK TO SAVEPOINT outfall_1
SELECT `_outfall_stage`, count(*) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) GROUP BY 1
SELECT `_outfall_stage`, MAX(`_outfall_row`) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) GROUP BY `_outfall_stage` ORDER BY `_outfall_stage`
SAVEPOINT outfall_2
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 2) OR (`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 2)) ORDER BY `_outfall_stage`, `_outfall_row`
ROLLBACK TO SAVEPOINT outfall_2
RELEASE SAVEPOINT outfall_2
SAVEPOINT outfall_3
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 2)) ORDER BY `_outfall_stage`, `_outfall_row`
ROLLBACK TO SAVEPOINT outfall_3
RELEASE SAVEPOINT outfall_3
SAVEPOINT outfall_4
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 1)) ORDER BY `_outfall_stage`, `_outfall_row`
RELEASE SAVEPOINT outfall_4
SAVEPOINT outfall_5
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 2 AND 2)) ORDER BY `_outfall_stage`, `_outfall_row`
ROLLBACK TO SAVEPOINT outfall_5
RELEASE SAVEPOINT outfall_5
SAVEPOINT outfall_6
RELEASE SAVEPOINT outfall_6
INSERT INTO `dead` (`row`, `reason`, `code`, `excerpt`, `step`, `epoch`, `part`, `time`) VALUES ((SELECT JSON_OBJECT('id', `id`, 'name', `name`, 'version', `version`) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` = 1234567890 AND `_outfall_row` = 2), %(reason)s, %(code)s, %(excerpt)s, %(step)s, %(epoch)s, %(part)s, %(time)s)
SELECT DISTINCT `_outfall_stage` FROM `db`.`refused` WHERE NOT EXISTS (SELECT 1 FROM `db`.`attempts` AS live WHERE live.stage = `db`.`refused`.`_outfall_stage`)
