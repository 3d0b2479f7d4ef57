from lightning_idc.report.html import write_report as write_report
from lightning_idc.report.hub_results import hub_entries as hub_entries
from lightning_idc.report.results import Results as Results
from lightning_idc.report.sheet import contact_sheet as contact_sheet
from lightning_idc.report.summary import summarise as summarise
from lightning_idc.report.table import Table as Table
