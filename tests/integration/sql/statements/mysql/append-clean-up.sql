DELETE FROM `db`.`ledger` WHERE incarnation = %(incarnation)s AND ((target = %(target0)s OR @@lower_case_table_names <> 0 AND LOWER(target) = LOWER(%(target0)s)) AND step = %(step0)s)
