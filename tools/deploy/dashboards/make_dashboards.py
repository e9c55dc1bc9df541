#!/usr/bin/env python3
"""Writes the Grafana dashboards of this folder, from a table of panels each. Usage: make_dashboards.py [--check] [FOLDER]

--check writes nothing and fails where a file is another than it would be.
"""

import json
import os
import sys

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39
WIDTH, HEIGHT = 8, 7  # three panels in a row of 24

# What the variables of a dashboard choose among.
INSTANCES = {
    "leaf": "label_values(kvatlas_leaf_streams_open, instance)",
    "hierarchy": "label_values(kvatlas_hierarchy_streams_open, instance)",
    "frontend": "label_values(kvatlas_frontend_in_flight, instance)",
}


def row(title):
    return {"row": title}


def panel(title, unit, *targets, about="", kind="timeseries", **options):
    """A target is (expression, legend). {i} in an expression is the choice of instances."""
    return {"title": title, "unit": unit, "targets": targets, "about": about, "kind": kind, **options}


def quantiles(metric, by="instance"):
    return [(f"histogram_quantile({q}, sum by ({by}, le) (rate({metric}_bucket{{{{i}}}}[$__rate_interval])))",
             f"p{int(q * 100)} {{{{{by}}}}}") for q in (0.5, 0.99)]


FLEET = [
    row("Verdict"),
    panel("Processes up", "short", ('count by (job) (up{job=~"kvatlas.*"} == 1)', "{{job}}"), kind="stat"),
    panel("Processes that are not up", "short", ('count(up{job=~"kvatlas.*"} == 0) or vector(0)', "down"), kind="stat", alarm=1),
    panel("Not ready", "short", ("count(kvatlas_ready == 0) or vector(0)", "not ready"), kind="stat", alarm=1),
    panel("Alerts", "short", ('count by (severity) (ALERTS{alertstate="firing", alertname=~"Kvatlas.*"}) or vector(0)', "{{severity}}"), kind="stat", alarm=1),
    panel("Versions", "short", ("count by (version) (kvatlas_build_info)", "{{version}}"), kind="stat"),
    panel("Listening without TLS and policy", "short", ("sum(kvatlas_insecure)", "insecure"), kind="stat", alarm=1),
    row("Routes"),
    panel("Routes by fallback", "reqps", ("sum by (fallback) (rate(kvatlas_frontend_routes_total[$__rate_interval]))", "{{fallback}}"),
          about="Everything but none was answered with something missing.", stack=True),
    panel("Hit ratio", "percentunit",
          ("sum(rate(kvatlas_frontend_chosen_blocks_total[$__rate_interval])) / sum(rate(kvatlas_frontend_prompt_blocks_total[$__rate_interval]))", "chosen"),
          ("sum(rate(kvatlas_frontend_best_blocks_total[$__rate_interval])) / sum(rate(kvatlas_frontend_prompt_blocks_total[$__rate_interval]))", "best available"),
          about="Blocks of prompts that the chosen worker has, and that the best worker asked had; between them lies what load was worth."),
    panel("Time of a route", "s", *[(e.replace("{{i}}", ""), l) for e, l in quantiles("kvatlas_frontend_route_seconds")]),
    row("Holdings"),
    panel("Distinct blocks", "short", ("sum by (domain) (kvatlas_leaf_blocks)", "{{domain}}")),
    panel("Workers by trust", "short", ("sum by (trust) (kvatlas_leaf_holders_by_trust)", "{{trust}}"), stack=True,
          about="stale: not heard from for a lease. degraded: a repair is under way."),
    panel("Cells by trust", "short", ("sum by (trust) (kvatlas_hierarchy_holders_by_trust)", "{{trust}}"), stack=True),
    row("Processes"),
    panel("Processor", "percentunit", ('rate(process_cpu_seconds_total{job=~"kvatlas.*"}[$__rate_interval])', "{{instance}}"), about="1 is a core."),
    panel("Resident memory", "bytes", ('process_resident_memory_bytes{job=~"kvatlas.*"}', "{{instance}}")),
    panel("Descriptors", "short", ('process_open_fds{job=~"kvatlas.*"}', "{{instance}}")),
]

LEAF = [
    row("Questions"),
    panel("Questions", "reqps", ("rate(kvatlas_leaf_find_overlaps_seconds_count{{i}}[$__rate_interval])", "{{instance}}")),
    panel("Time to answer", "s", *quantiles("kvatlas_leaf_find_overlaps_seconds")),
    panel("Refused questions", "reqps", ("rate(kvatlas_leaf_find_overlaps_refused_total{{i}}[$__rate_interval])", "{{instance}}")),
    row("Holdings"),
    panel("Distinct blocks", "short", ("kvatlas_leaf_blocks{{i}}", "{{instance}} {{domain}}")),
    panel("Holdings", "short", ("kvatlas_leaf_holdings{{i}}", "{{instance}} {{domain}}"), about="Pairs of worker and block."),
    panel("Workers by trust", "short", ("sum by (instance, trust) (kvatlas_leaf_holders_by_trust{{i}})", "{{instance}} {{trust}}"), stack=True),
    panel("Stores", "wps", ("rate(kvatlas_leaf_blocks_stored_total{{i}}[$__rate_interval])", "{{instance}} {{domain}}"), about="Blocks a second."),
    panel("Removals", "wps", ("rate(kvatlas_leaf_blocks_removed_total{{i}}[$__rate_interval])", "{{instance}} {{domain}}")),
    panel("Masked workers", "short", ("kvatlas_leaf_holders_masked{{i}}", "{{instance}} {{domain}}"), about="In no answer."),
    row("Memory"),
    panel("Memory of the budget", "percentunit", ("kvatlas_leaf_memory_used_bytes{{i}} / (kvatlas_leaf_memory_budget_bytes{{i}} > 0)", "{{instance}}"),
          about="From 80 % only heads of new sequences, from 90 % no new blocks, from 95 % no large questions."),
    panel("Memory by part", "bytes", ("sum by (part) (kvatlas_leaf_memory_part_bytes{{i}})", "{{part}}"), stack=True),
    panel("Index bytes for each block", "bytes", ("kvatlas_leaf_index_bytes{{i}} / (kvatlas_leaf_blocks{{i}} > 0)", "{{instance}} {{domain}}")),
    row("Upward, and to disk"),
    panel("Parents connected", "short", ("min by (instance, parent) (kvatlas_leaf_parent_connected{{i}})", "{{instance}} → {{parent}}")),
    panel("Waypoints", "short", ("sum by (instance) (kvatlas_leaf_waypoints_covered{{i}})", "{{instance}} covered"),
          ("sum by (instance) (kvatlas_leaf_waypoints_announced{{i}})", "{{instance}} announced"),
          ("sum by (instance) (kvatlas_leaf_waypoints_waiting{{i}})", "{{instance}} waiting"), about="Waiting: kept back by the budget for coverage."),
    panel("Age of the last checkpoint", "s", ("kvatlas_leaf_checkpoint_age_seconds{{i}}", "{{instance}}"), about="-1: none yet."),
    panel("Writing a checkpoint", "s", ("kvatlas_leaf_checkpoint_seconds{{i}}", "{{instance}}")),
    panel("Size of a checkpoint, and room", "bytes", ("kvatlas_leaf_checkpoint_bytes{{i}}", "{{instance}} last"),
          ("kvatlas_leaf_checkpoint_free_bytes{{i}}", "{{instance}} free")),
    panel("Checkpoints", "short", ("increase(kvatlas_leaf_checkpoint_writes_total{{i}}[5m])", "{{instance}} written in 5 min"),
          ("increase(kvatlas_leaf_checkpoint_failures_total{{i}}[5m])", "{{instance}} failed in 5 min")),
]

HIERARCHY = [
    row("Questions"),
    panel("Questions", "reqps", ("rate(kvatlas_hierarchy_find_cells_total{{i}}[$__rate_interval])", "{{instance}}"),
          ("rate(kvatlas_hierarchy_find_cells_failed_total{{i}}[$__rate_interval])", "{{instance}} refused")),
    panel("Time to answer", "s", *quantiles("kvatlas_hierarchy_find_cells_seconds")),
    panel("Streams of cells", "short", ("kvatlas_hierarchy_streams_open{{i}}", "{{instance}}")),
    row("Cells"),
    panel("Cells by trust", "short", ("sum by (instance, trust) (kvatlas_hierarchy_holders_by_trust{{i}})", "{{instance}} {{trust}}"), stack=True),
    panel("Cells known", "short", ("kvatlas_hierarchy_holders{{i}}", "{{instance}} {{domain}}"), about="Replicas of cells."),
    panel("Masked cells", "short", ("kvatlas_hierarchy_holders_masked{{i}}", "{{instance}} {{domain}}"), about="Silent for a lease: in no answer."),
    panel("Waypoints", "short", ("kvatlas_hierarchy_blocks{{i}}", "{{instance}} {{domain}}")),
    panel("Waypoints stored and removed", "wps", ("rate(kvatlas_hierarchy_blocks_stored_total{{i}}[$__rate_interval])", "{{instance}} {{domain}} stored"),
          ("rate(kvatlas_hierarchy_blocks_removed_total{{i}}[$__rate_interval])", "{{instance}} {{domain}} removed")),
    panel("Gaps, snapshots, digests that differ", "short", ("increase(kvatlas_hierarchy_gaps_total{{i}}[5m])", "{{instance}} gaps in 5 min"),
          ("increase(kvatlas_hierarchy_snapshots_total{{i}}[5m])", "{{instance}} snapshots in 5 min"),
          ("increase(kvatlas_hierarchy_digests_different_total{{i}}[5m])", "{{instance}} digests in 5 min")),
    row("Memory"),
    panel("Memory of the budget", "percentunit", ("kvatlas_hierarchy_memory_used_bytes{{i}} / (kvatlas_hierarchy_memory_budget_bytes{{i}} > 0)", "{{instance}}")),
    panel("Index", "bytes", ("kvatlas_hierarchy_index_bytes{{i}}", "{{instance}} {{domain}}")),
    panel("Hellos refused", "short", ("increase(kvatlas_hierarchy_streams_refused_total{{i}}[5m])", "{{instance}} in 5 min")),
]

FRONTEND = [
    row("Routes"),
    panel("Routes by fallback", "reqps", ("sum by (fallback) (rate(kvatlas_frontend_routes_total{{i}}[$__rate_interval]))", "{{fallback}}"), stack=True),
    panel("Time of a route", "s", *quantiles("kvatlas_frontend_route_seconds")),
    panel("In flight", "short", ("kvatlas_frontend_in_flight{{i}}", "{{instance}}"), about="Choices that nothing was reported on yet."),
    panel("Routes that failed", "reqps", ("rate(kvatlas_frontend_routes_failed_total{{i}}[$__rate_interval])", "{{instance}}"),
          ("rate(kvatlas_frontend_routes_rejected_total{{i}}[$__rate_interval])", "{{instance}} of these: all workers overloaded")),
    panel("Waiting for the hierarchy", "s", *quantiles("kvatlas_frontend_find_cells_seconds")),
    panel("Waiting for leaves", "s", *quantiles("kvatlas_frontend_find_overlaps_seconds")),
    row("Hits"),
    panel("Hit ratio", "percentunit",
          ("rate(kvatlas_frontend_chosen_blocks_total{{i}}[$__rate_interval]) / rate(kvatlas_frontend_prompt_blocks_total{{i}}[$__rate_interval])", "{{instance}} chosen"),
          ("rate(kvatlas_frontend_best_blocks_total{{i}}[$__rate_interval]) / rate(kvatlas_frontend_prompt_blocks_total{{i}}[$__rate_interval])", "{{instance}} best available"),
          ("rate(kvatlas_frontend_cached_blocks_total{{i}}[$__rate_interval]) / rate(kvatlas_frontend_reported_blocks_total{{i}}[$__rate_interval])", "{{instance}} served"),
          about="served: by the engines' own reports."),
    panel("Promises of cells that were not kept", "percentunit", ("rate(kvatlas_frontend_wrong_cells_total{{i}}[$__rate_interval]) / rate(kvatlas_frontend_promises_total{{i}}[$__rate_interval])", "{{instance}}"),
          about="The first cell asked had less than the hierarchy said."),
    panel("Fleet remembered", "short", ("kvatlas_frontend_workers_remembered{{i}}", "{{instance}} workers"), ("kvatlas_frontend_cells_remembered{{i}}", "{{instance}} cells")),
    row("Truth"),
    panel("Served against predicted", "reqps", ("sum by (result) (rate(kvatlas_frontend_served_total{{i}}[$__rate_interval]))", "{{result}}"), stack=True,
          about="unknown: the report had no cached tokens."),
    panel("Tokens from cache", "short", ("rate(kvatlas_frontend_predicted_tokens_total{{i}}[$__rate_interval])", "{{instance}} predicted"),
          ("rate(kvatlas_frontend_served_tokens_total{{i}}[$__rate_interval])", "{{instance}} served"), about="Tokens a second, of reported requests."),
    panel("Findings", "percentunit", ("kvatlas_frontend_finding{{i}}", "{{cause}} {{cell}} {{worker}}"), about="Confidence, 0 to 1. Empty in a healthy fleet."),
    panel("Requests that failed at their worker", "reqps", ("rate(kvatlas_frontend_requests_failed_total{{i}}[$__rate_interval])", "{{instance}}")),
    panel("Prompts whose length differs", "reqps", ("rate(kvatlas_frontend_prompt_lengths_differ_total{{i}}[$__rate_interval])", "{{instance}}")),
    panel("Decisions kept", "short", ("kvatlas_frontend_decisions_kept{{i}}", "{{instance}}")),
    row("Proxy"),
    panel("Answers", "reqps", ("rate(kvatlas_frontend_proxy_answers_total{{i}}[$__rate_interval])", "{{instance}} by engines"),
          ("rate(kvatlas_frontend_proxy_refused_total{{i}}[$__rate_interval])", "{{instance}} without one")),
    panel("Engines tried again, answers broken off", "reqps", ("rate(kvatlas_frontend_proxy_tried_again_total{{i}}[$__rate_interval])", "{{instance}} tried again"),
          ("rate(kvatlas_frontend_proxy_broken_total{{i}}[$__rate_interval])", "{{instance}} broken off")),
    panel("Under way", "short", ("kvatlas_frontend_proxy_under_way{{i}}", "{{instance}}")),
]

STREAMS = [
    row("Streams into leaves"),
    panel("Streams open", "short", ("kvatlas_leaf_streams_open", "{{instance}}")),
    panel("Workers not exact", "short", ('sum by (instance, domain, trust) (kvatlas_leaf_holders_by_trust{trust!="exact"})', "{{instance}} {{domain}} {{trust}}"), stack=True),
    panel("Hellos refused", "short", ("increase(kvatlas_leaf_streams_refused_total[5m])", "{{instance}} in 5 min")),
    panel("Age of the oldest stream", "s", ("kvatlas_leaf_stream_age_max_seconds", "{{instance}} {{domain}}"), about="Since the sender was heard."),
    panel("Batches behind", "short", ("topk(10, kvatlas_leaf_stream_behind_batches)", "{{instance}} {{holder}}"), about="Told of and not applied, of the ten worst."),
    panel("Batches that parents have not acknowledged", "short", ("sum by (instance, parent) (kvatlas_leaf_parent_unacknowledged_batches)", "{{instance}} → {{parent}}")),
    panel("Gaps", "short", ("increase(kvatlas_leaf_gaps_total[5m])", "{{instance}} {{domain}} in 5 min")),
    panel("Snapshots", "short", ("increase(kvatlas_leaf_snapshots_total[5m])", "{{instance}} {{domain}} in 5 min")),
    panel("Digests that differ", "short", ("increase(kvatlas_leaf_digests_different_total[5m])", "{{instance}} {{domain}} in 5 min"), about="Should be 0."),
    panel("Leases that ran out", "short", ("increase(kvatlas_leaf_holders_expired_total[5m])", "{{instance}} in 5 min")),
    panel("Repairs that never came", "short", ("increase(kvatlas_leaf_repairs_timed_out_total[5m])", "{{instance}} {{domain}} in 5 min")),
    panel("Names claimed twice", "short", ("increase(kvatlas_leaf_names_claimed_twice_total[5m])", "{{instance}} {{domain}} in 5 min")),
    row("Engines' own events"),
    panel("Connected", "short", ("kvatlas_engine_connected", "{{worker}}/{{rank}}")),
    panel("Lag", "s", ("kvatlas_engine_lag_seconds", "{{worker}}/{{rank}}"), about="From the engine's clock to applied, of the last message."),
    panel("Silent for", "s", ("kvatlas_engine_silent_seconds", "{{worker}}/{{rank}}")),
    panel("Messages", "short", ("rate(kvatlas_engine_messages_total[$__rate_interval])", "{{worker}}/{{rank}}"), about="Messages a second."),
    panel("Lost", "short", ("increase(kvatlas_engine_messages_lost_total[5m])", "{{worker}}/{{rank}} messages in 5 min"), ("increase(kvatlas_engine_gaps_total[5m])", "{{worker}}/{{rank}} gaps in 5 min")),
    panel("Refused", "short", ("increase(kvatlas_engine_refused_total[5m])", "{{worker}} {{reason}} in 5 min")),
    panel("Queued", "bytes", ("kvatlas_engine_queued_bytes", "{{worker}}/{{rank}}")),
    panel("Parked blocks", "short", ("kvatlas_engine_parked_blocks", "{{worker}}/{{rank}}"), about="They wait for their parent."),
    panel("Unreadable", "short", ("increase(kvatlas_engine_undecodable_total[5m])", "{{worker}}/{{rank}} payloads in 5 min"), ("increase(kvatlas_engine_bad_frames_total[5m])", "{{worker}}/{{rank}} frames in 5 min")),
    row("Redis"),
    panel("Connected", "short", ("kvatlas_leaf_redis_connected", "{{instance}}")),
    panel("Entries read", "short", ("rate(kvatlas_leaf_redis_entries_read_total[$__rate_interval])", "{{instance}}"), about="A second."),
    panel("Losses, replays, damaged entries", "short", ("increase(kvatlas_leaf_redis_losses_total[5m])", "{{instance}} losses in 5 min"),
          ("increase(kvatlas_leaf_redis_replays_total[5m])", "{{instance}} replays in 5 min"), ("increase(kvatlas_leaf_redis_entries_damaged_total[5m])", "{{instance}} damaged in 5 min")),
    row("Relays"),
    panel("Streams from engines", "short", ("kvatlas_relay_engine_streams", "{{instance}}"), ("kvatlas_relay_engine_streams_connected", "{{instance}} connected")),
    panel("Streams to leaves", "short", ("kvatlas_relay_leaf_streams", "{{instance}}"), ("kvatlas_relay_leaf_streams_welcomed", "{{instance}} welcomed")),
    panel("Engines' lag at relays", "s", ("kvatlas_relay_engine_lag_seconds", "{{instance}} {{worker}}/{{rank}}")),
    panel("Messages lost", "short", ("increase(kvatlas_relay_messages_lost_total[5m])", "{{instance}} in 5 min"), ("increase(kvatlas_relay_gaps_total[5m])", "{{instance}} gaps in 5 min")),
]

DASHBOARDS = {
    "fleet": ("kvatlas: fleet", None, FLEET),
    "leaf": ("kvatlas: leaves", "leaf", LEAF),
    "hierarchy": ("kvatlas: hierarchy", "hierarchy", HIERARCHY),
    "frontend": ("kvatlas: frontends", "frontend", FRONTEND),
    "streams": ("kvatlas: streams", None, STREAMS),
}


def variables(of_instances):
    chosen = [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}]
    if of_instances is not None:
        chosen.append({"name": "instance", "label": "Instance", "type": "query", "datasource": DATASOURCE,
                       "query": {"query": INSTANCES[of_instances], "refId": "instance"}, "refresh": 2, "sort": 1,
                       "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}})
    return chosen


def grafana_panel(spec, number, x, y):
    defaults = {"unit": spec["unit"], "min": 0 if spec["unit"] == "percentunit" else None}
    thresholds = [{"color": "green", "value": None}]
    if "alarm" in spec:
        thresholds.append({"color": "red", "value": spec["alarm"]})
    defaults["thresholds"] = {"mode": "absolute", "steps": thresholds}
    made = {"id": number, "type": spec["kind"], "title": spec["title"], "description": spec["about"], "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT}, "fieldConfig": {"defaults": defaults, "overrides": []},
            "targets": [{"refId": chr(ord("A") + i), "datasource": DATASOURCE, "legendFormat": legend, "range": True,
                         "expr": expression.replace("{{i}}", '{instance=~"$instance"}')}
                        for i, (expression, legend) in enumerate(spec["targets"])]}
    if spec["kind"] == "timeseries":
        defaults["custom"] = {"fillOpacity": 20 if spec.get("stack") else 5, "showPoints": "never",
                              "stacking": {"mode": "normal" if spec.get("stack") else "none"}}
        made["options"] = {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
                           "tooltip": {"mode": "multi", "sort": "desc"}}
    else:
        made["options"] = {"colorMode": "background" if "alarm" in spec else "value", "textMode": "value_and_name",
                           "reduceOptions": {"calcs": ["lastNotNull"]}}
    return made


def dashboard(name, title, of_instances, specs):
    panels, x, y = [], 0, 0
    for spec in specs:
        if "row" in spec:
            y += HEIGHT if x else 0
            panels.append({"id": len(panels) + 1, "type": "row", "title": spec["row"], "collapsed": False, "panels": [],
                           "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
            x, y = 0, y + 1
            continue
        panels.append(grafana_panel(spec, len(panels) + 1, x, y))
        x += WIDTH
        if x == 24:
            x, y = 0, y + HEIGHT
    return {"uid": f"kvatlas-{name}", "title": title, "tags": ["kvatlas"], "schemaVersion": SCHEMA_VERSION, "version": 1, "editable": True,
            "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
            "links": [{"type": "dashboards", "title": "kvatlas", "tags": ["kvatlas"], "asDropdown": True, "includeVars": True, "keepTime": True}],
            "templating": {"list": variables(of_instances)}, "annotations": {"list": []}, "panels": panels}


def main(arguments):
    check = "--check" in arguments
    folders = [argument for argument in arguments if argument != "--check"]
    folder = folders[0] if folders else os.path.dirname(os.path.abspath(__file__))
    wrong = 0
    for name, (title, of_instances, specs) in DASHBOARDS.items():
        path = os.path.join(folder, name + ".json")
        text = json.dumps(dashboard(name, title, of_instances, specs), indent=1, ensure_ascii=False) + "\n"
        if not check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                print(f"{path}: not what make_dashboards.py writes; run it")
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
