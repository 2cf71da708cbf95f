CREATE TABLE `db`.`staging_sink_d03c71573fc0_0123456789ab` (`_outfall_stage` BIGINT NOT NULL, `_outfall_row` BIGINT NOT NULL, `_outfall_table` VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, `id` bigint NULL, `name` varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, `version` bigint NULL, PRIMARY KEY (`_outfall_stage`, `_outfall_row`)) ENGINE = InnoDB CHARACTER SET utf8mb4
CREATE INDEX `_outfall_table` ON `db`.`staging_sink_d03c71573fc0_0123456789ab` (`_outfall_table`)
LOAD DATA LOCAL INFILE 'outfall' INTO TABLE `db`.`staging_sink_d03c71573fc0_0123456789ab` CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' (`_outfall_stage`, `_outfall_row`, `id`, `name`, `version`, `_outfall_table`)
SELECT target FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND step = %(step)s AND target IN (%(target_0)s, %(target_1)s)
SELECT EXISTS (SELECT 1 FROM `db`.`ledger` WHERE step = %(step)s AND incarnation <> %(incarnation)s AND epoch IS NOT NULL)
EXPLAIN INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE false
EXPLAIN INSERT INTO `db`.`t2` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE false
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE `_outfall_stage` IN (1234567890) AND `_outfall_table` IN (%(table_0)s) ORDER BY `_outfall_stage`, `_outfall_row`
INSERT INTO `db`.`t2` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE `_outfall_stage` IN (1234567890) AND `_outfall_table` IN (%(table_0)s) ORDER BY `_outfall_stage`, `_outfall_row`
ROLLBACK TO SAVEPOINT outfall_1
SAVEPOINT outfall_2
RELEASE SAVEPOINT outfall_2
SAVEPOINT outfall_3
ROLLBACK TO SAVEPOINT outfall_3
ROLLBACK
SELECT target FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND step = %(step)s AND target IN (%(target_0)s)
SELECT `_outfall_stage`, MAX(`_outfall_row`) FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE `_outfall_stage` IN (1234567890) AND `_outfall_table` IN (%(table_0)s) GROUP BY `_outfall_stage` ORDER BY `_outfall_stage`
INSERT INTO `db`.`t2` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 2)) AND `_outfall_table` IN (%(table_0)s) ORDER BY `_outfall_stage`, `_outfall_row`
INSERT INTO `db`.`t2` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 1)) AND `_outfall_table` IN (%(table_0)s) ORDER BY `_outfall_stage`, `_outfall_row`
INSERT INTO `db`.`t2` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 2 AND 2)) AND `_outfall_table` IN (%(table_0)s) ORDER BY `_outfall_stage`, `_outfall_row`
RELEASE SAVEPOINT outfall_3
SELECT JSON_OBJECT('id', `id`, 'name', `name`, 'version', `version`, 'place', `_outfall_table`) FROM `db`.`staging_sink_d03c71573fc0_0123456789ab` WHERE `_outfall_stage` = 1234567890 AND `_outfall_row` = 2
