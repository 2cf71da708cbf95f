CREATE TABLE `db`.`refused` (`_outfall_stage` bigint NOT NULL, `row` longtext NOT NULL, `reason` longtext NOT NULL, `code` longtext NULL, `excerpt` longtext NULL, `step` longtext NOT NULL, `epoch` bigint NULL, `part` longtext NULL, `time` datetime(6) NOT NULL, `_outfall_id` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE, PRIMARY KEY (`_outfall_stage`, `_outfall_id`), KEY (`_outfall_id`)) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
CREATE TABLE `dead` (`row` longtext NOT NULL, `reason` longtext NOT NULL, `code` longtext NULL, `excerpt` longtext NULL, `step` longtext NOT NULL, `epoch` bigint NULL, `part` longtext NULL, `time` datetime(6) NOT NULL, `_outfall_id` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE, PRIMARY KEY (`_outfall_id`), KEY (`_outfall_id`)) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
LOAD DATA LOCAL INFILE 'outfall' INTO TABLE `db`.`staging_t_sink_0123456789ab` CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' (`_outfall_stage`, `_outfall_row`, `id`)
EXPLAIN DELETE FROM `db`.`t` WHERE false
DELETE target FROM `db`.`t` AS target JOIN `db`.`staging_t_sink_0123456789ab` AS removed ON target.`id` = removed.`id` WHERE `_outfall_stage` IN (1234567890)
ROLLBACK TO SAVEPOINT outfall_1
SELECT `_outfall_stage`, count(*) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) GROUP BY 1
SELECT `_outfall_stage`, MAX(`_outfall_row`) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) GROUP BY `_outfall_stage` ORDER BY `_outfall_stage`
SAVEPOINT outfall_2
DELETE target FROM `db`.`t` AS target JOIN `db`.`staging_t_sink_0123456789ab` AS removed ON target.`id` = removed.`id` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 1) OR (`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 1))
ROLLBACK TO SAVEPOINT outfall_2
RELEASE SAVEPOINT outfall_2
SAVEPOINT outfall_3
DELETE target FROM `db`.`t` AS target JOIN `db`.`staging_t_sink_0123456789ab` AS removed ON target.`id` = removed.`id` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 1))
RELEASE SAVEPOINT outfall_3
SAVEPOINT outfall_4
ROLLBACK TO SAVEPOINT outfall_4
RELEASE SAVEPOINT outfall_4
INSERT INTO `dead` (`row`, `reason`, `code`, `excerpt`, `step`, `epoch`, `part`, `time`) VALUES ((SELECT JSON_OBJECT('id', `id`) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` = 1234567890 AND `_outfall_row` = 1), %(reason)s, %(code)s, %(excerpt)s, %(step)s, %(epoch)s, %(part)s, %(time)s)
SELECT DISTINCT `_outfall_stage` FROM `db`.`refused` WHERE NOT EXISTS (SELECT 1 FROM `db`.`attempts` AS live WHERE live.stage = `db`.`refused`.`_outfall_stage`)
