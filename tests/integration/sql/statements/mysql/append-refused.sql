CREATE TABLE `db`.`staging_t_sink_0123456789ab` (`_outfall_stage` BIGINT NOT NULL, `_outfall_row` BIGINT NOT NULL, `id` bigint NULL, `name` varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, `version` bigint NULL, PRIMARY KEY (`_outfall_stage`, `_outfall_row`)) ENGINE = InnoDB CHARACTER SET utf8mb4
ROLLBACK TO SAVEPOINT outfall_1
ROLLBACK
SELECT `_outfall_stage`, MAX(`_outfall_row`) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) GROUP BY `_outfall_stage` ORDER BY `_outfall_stage`
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 2)) ORDER BY `_outfall_stage`, `_outfall_row`
SAVEPOINT outfall_2
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 1 AND 1)) ORDER BY `_outfall_stage`, `_outfall_row`
RELEASE SAVEPOINT outfall_2
SAVEPOINT outfall_3
INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` WHERE ((`_outfall_stage` = 1234567890 AND `_outfall_row` BETWEEN 2 AND 2)) ORDER BY `_outfall_stage`, `_outfall_row`
ROLLBACK TO SAVEPOINT outfall_3
RELEASE SAVEPOINT outfall_3
SELECT JSON_OBJECT('id', `id`, 'name', `name`, 'version', `version`) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` = 1234567890 AND `_outfall_row` = 2
