-- Schema 2: runs that are over are listed from indexes of their own. A run enters those once, at its end; until then each
-- of its changes of status moves it in one small index and not in two large ones.

DROP INDEX runs_of_owner;
DROP INDEX runs_by_status;
DROP INDEX runs_of_tenant;
CREATE INDEX runs_at_work ON runs (status, no, tenant) WHERE state <> 'terminal';
CREATE INDEX runs_ended ON runs (status, no) WHERE state = 'terminal';
CREATE INDEX runs_ended_of_tenant ON runs (tenant, status, no) WHERE state = 'terminal';
