INSERT INTO `db`.`t` (`id`, `name`, `version`) SELECT `id`, `name`, `version` FROM `db`.`staging_t_sink_0123456789ab` AS latest WHERE `_outfall_stage` IN (1234567890) ORDER BY `_outfall_stage`, `_outfall_row` ON DUPLICATE KEY UPDATE `name` = latest.`name`
SELECT `_outfall_stage`, count(*) FROM `db`.`staging_t_sink_0123456789ab` WHERE `_outfall_stage` IN (1234567890) GROUP BY 1
