from tests.gce_world import *
from tpuctl.cloud.plan import CreateOptions, plan_create
from tpuctl.cloud.placement import complete_plan
from tpuctl.cloud.create import create
from tpuctl.cloud.journal import Journal
from tpuctl.cloud.list import list_tpus
from tpuctl.cloud.delete import plan_delete, delete
from tpuctl.cloud.gc import find_orphans
from tpuctl.emulator.compute import service
for k in ("instanceGroupManagers","resourcePolicies","instanceTemplates"): service._SHOWN.setdefault(k, lambda w,c: {})
def test_try(world, monkeypatch):
    here = open_gce(world, monkeypatch)
    api = here.api
    print(api.list_zones(), api.list_accelerator_types("us-east5-a"))
    print(api.list_quotas())
    plan = complete_plan(api, plan_create(CreateOptions("t1","v6e-4",(),provider="gce",ttl_s=7200)))
    print(plan)
    made = create(api, plan, journal=Journal())
    print(made)
    print(list_tpus(api))
    d = plan_delete(api, ["t1"], journal=Journal())
    print(delete(api, d, journal=Journal()))
    print(list_tpus(api).tpus, api.why_gone("t1", zone="us-east5-a"))
    plan = complete_plan(api, plan_create(CreateOptions("t2","v6e-4",(ZONE,),provider="gce",ttl_s=7200,spot=True)))
    made = create(api, plan, journal=Journal())
    here.clock.sleep(7300)
    print(api.why_gone("t2", zone=ZONE))
    print(find_orphans(api, journal=Journal()))
