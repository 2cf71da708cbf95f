CREATE TABLE `db`.`staging_t_sink_0123456789ab` (`_outfall_stage` BIGINT NOT NULL, `_outfall_row` BIGINT NOT NULL, `id` bigint NULL, PRIMARY KEY (`_outfall_stage`, `_outfall_row`)) ENGINE = InnoDB CHARACTER SET utf8mb4
LOAD DATA LOCAL INFILE 'outfall' INTO TABLE `db`.`staging_t_sink_0123456789ab` CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' (`_outfall_stage`, `_outfall_row`, `id`)
EXPLAIN INSERT INTO `db`.`t` (`id`) SELECT `id` FROM `db`.`staging_t_sink_0123456789ab` WHERE false
INSERT INTO `db`.`t` (`id`) SELECT `id` FROM `db`.`staging_t_sink_0123456789ab` AS latest WHERE `_outfall_stage` IN (1234567890) ORDER BY `_outfall_stage`, `_outfall_row` ON DUPLICATE KEY UPDATE `id` = `db`.`t`.`id`
SELECT `_outfall_stage`, count(*) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) GROUP BY 1
