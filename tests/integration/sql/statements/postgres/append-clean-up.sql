DELETE FROM "outfall"."ledger" WHERE incarnation = %(incarnation)s AND (target = %(target)s) AND step = %(step)s
