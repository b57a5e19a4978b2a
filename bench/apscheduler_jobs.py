"""APScheduler as a program: runs the shell commands of a JSON file, at most so many at once, until it is ended."""

import json
import subprocess
import sys

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger

with open(sys.argv[1], encoding="utf-8") as file:
    jobs = json.load(file)
scheduler = BlockingScheduler(executors={"default": ThreadPoolExecutor(int(sys.argv[2]))}, timezone="UTC")
for schedule, argv in jobs:
    # Without a grace time: whatever waited for one of the threads runs all the same.
    trigger = CronTrigger.from_crontab(schedule, "UTC")
    scheduler.add_job(subprocess.run, trigger, args=[argv], misfire_grace_time=None)
scheduler.start()
