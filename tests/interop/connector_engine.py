"""vLLM's own scheduler with its KV connectors, without a GPU: what it published, and what it could reuse at the end.

    python connector_engine.py MODEL_FOLDER OUT_FOLDER SEED [NAME…]

The whole package is imported (its environment needs PyTorch); the model's folder needs its config.json alone. A stub stands in for the worker:
it says of each transfer, in the step after, that it is complete. For each scenario of `SCENARIOS` two files are written: NAME.bin, each
payload after its length (4 bytes, big endian), and NAME.json with the registration and the prompts, each with the tokens that the engine
could reuse: `get_computed_blocks`, then the connector's `get_num_new_matched_tokens`.
"""

import json
import os
import random
import sys
import tempfile
import threading

BLOCK = 16
VOCAB = 1000
STEPS_MAX = 10000
# What is asked behind a prompt, so that all of it may be reused.
BEHIND = VOCAB


def offload(chunk=1, gpu_blocks=64, cpu_chunks=400, **extra):
    """OffloadingConnector with chunks of so many blocks, beside a pool of `gpu_blocks`."""
    return {"connector": "OffloadingConnector", "chunk": chunk, "gpu_blocks": gpu_blocks,
            "cpu_chunks": cpu_chunks, "extra": extra}


SCENARIOS = {
    **{f"offload_{chunk}": offload(chunk) for chunk in (1, 2, 4)},
    **{f"offload_{chunk}_described": offload(chunk, self_describing_kv_events=True) for chunk in (1, 2, 4)},
    **{f"offload_{chunk}_small": offload(chunk, cpu_chunks=160 // chunk, self_describing_kv_events=True) for chunk in (1, 2, 4)},
    "offload_1_small_names": offload(1, cpu_chunks=160),
    "multi": {"connector": "MultiConnector", "chunk": 1, "gpu_blocks": 64, "cpu_chunks": 400, "second_chunks": 40,
              "extra": {"self_describing_kv_events": True}},
    "files": offload(1, cpu_chunks=160, files=True, self_describing_kv_events=True),
    "lookahead_1": {**offload(1), "lookahead": 1, "connector": None},
    "lookahead_2": {**offload(1), "lookahead": 2, "connector": None},
}


def transfer_config(scenario, folder):
    from vllm.config import KVTransferConfig

    if scenario["connector"] is None:
        return None
    extra = dict(scenario["extra"])
    files = extra.pop("files", False)
    extra["block_size"] = scenario["chunk"] * BLOCK
    # A chunk's bytes: one layer of one head of 64, keys and values, of two bytes each.
    page = 2 * 2 * 64 * BLOCK * scenario["chunk"]
    extra["cpu_bytes_to_use"] = scenario["cpu_chunks"] * page
    if files:
        extra |= {"spec_name": "TieringOffloadingSpec",
                  "secondary_tiers": [{"type": "fs", "root_dir": folder, "n_read_threads": 1, "n_write_threads": 1,
                                   "enable_kv_events": True}]}
    if scenario["connector"] == "MultiConnector":
        second = {**extra, "cpu_bytes_to_use": scenario["second_chunks"] * page}
        return KVTransferConfig(
            kv_connector="MultiConnector", kv_role="kv_both",
            kv_connector_extra_config={"connectors": [
                {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": one}
                for one in (extra, second)]})
    return KVTransferConfig(kv_connector=scenario["connector"], kv_role="kv_both", kv_connector_extra_config=extra)


def pause():
    """Between two looks at threads of a file tier, which do not say when they are ready."""
    threading.Event().wait(0.002)


class Recorder:
    """A publisher that keeps what it is given, as the engine would encode it."""

    def __init__(self):
        import msgspec

        self.payloads = []
        self.encoder = msgspec.msgpack.Encoder()

    def publish(self, batch):
        batch.data_parallel_rank = 0
        self.payloads.append(self.encoder.encode(batch))

    def shutdown(self):
        pass

    def get_publisher_config(self):
        return None


class Engine:
    def __init__(self, scenario, model, folder):
        import torch
        from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.config.kv_events import KVEventsConfig
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
        from vllm.v1.structured_output import StructuredOutputManager

        hash_fn = get_hash_fn_by_name("sha256")
        kv_cache_utils.init_none_hash(hash_fn)
        config = VllmConfig(
            model_config=model, device_config=DeviceConfig("cpu"),
            cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=4096,
                                             enable_chunked_prefill=True, is_encoder_decoder=False),
            kv_transfer_config=transfer_config(scenario, folder),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"))
        config.cache_config.num_gpu_blocks = scenario["gpu_blocks"]
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.float16)
        page = spec.page_size_bytes
        tensors = [KVCacheTensor(size=page * scenario["gpu_blocks"], layers=["layer"],
                                 layer_stride=page * scenario["gpu_blocks"], block_stride=page)]
        lookahead = scenario.get("lookahead", 0)
        # Else it follows from the drafting model.
        self.config_class, self.looks_ahead = VllmConfig, VllmConfig.num_hash_lookahead_tokens
        VllmConfig.num_hash_lookahead_tokens = property(lambda self: lookahead)
        self.hasher = kv_cache_utils.get_request_block_hasher(BLOCK, hash_fn, lookahead)
        self.scheduler = Scheduler(
            vllm_config=config, block_size=BLOCK, hash_block_size=BLOCK,
            kv_cache_config=KVCacheConfig(num_blocks=scenario["gpu_blocks"], kv_cache_tensors=tensors,
                                          kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config), log_stats=False)
        self.scheduler.kv_event_publisher = self.recorder = Recorder()
        self.requests = 0
        self.jobs = {}

    def request(self, prompt, outputs):
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self.requests += 1
        return Request(request_id=f"r{self.requests}", prompt_token_ids=list(prompt["tokens"]),
                       sampling_params=SamplingParams(max_tokens=outputs, ignore_eos=True), pooling_params=None,
                       cache_salt=prompt.get("salt"), block_hasher=self.hasher)

    @staticmethod
    def completed(metadata):
        """What a worker answers to a step's transfers: all are through; and requests whose blocks were loaded. Of connectors within a
        connector, each its own."""
        from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
            MultiKVConnectorMetadata, MultiKVConnectorWorkerMetadata)
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingConnectorMetadata, OffloadingWorkerMetadata)

        if isinstance(metadata, MultiKVConnectorMetadata):
            done, loaded = zip(*(Engine.completed(one) for one in metadata.metadata))
            return MultiKVConnectorWorkerMetadata(metadata=done), set().union(*loaded)
        if not isinstance(metadata, OffloadingConnectorMetadata):
            return None, set()
        done = OffloadingWorkerMetadata()
        for job in [*metadata.load_jobs, *metadata.store_jobs]:
            done.mark_completed(job)
        return done, {job.req_id for job in metadata.load_jobs.values() if not job.sync}

    def step(self):
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        output = self.scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for name in ids:
            request = self.scheduler.requests[name]
            done = request.num_computed_tokens >= request.num_tokens
            sampled.append([sum(request._all_token_ids[-3:]) % VOCAB] if done else [])
        metadata = output.kv_connector_metadata
        transferred = None
        if metadata is not None:
            done, loaded = self.completed(metadata)
            transferred = KVConnectorOutput(kv_connector_worker_meta=done, finished_recving=loaded or None)
        self.scheduler.update_from_output(output, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=sampled,
            kv_connector_output=transferred))

    def settle(self):
        """Steps until nothing is under way; file tiers work in threads of their own."""
        quiet = 0
        while quiet < 20:
            before = len(self.recorder.payloads)
            self.step()
            busy = self.scheduler.has_requests() or len(self.recorder.payloads) > before
            quiet = 0 if busy else quiet + 1
            if not self.scheduler.has_requests():
                pause()

    def run(self, prompts):
        for prompt in prompts:
            self.scheduler.add_request(self.request(prompt, 1))
        for steps in range(STEPS_MAX + 1):
            if not self.scheduler.has_requests():
                break
            self.step()
        if steps == STEPS_MAX:
            raise RuntimeError("requests do not end")
        self.settle()

    def reusable(self, prompt):
        """(tokens on the device, tokens with what the connector would load)"""
        request = self.request({**prompt, "tokens": [*prompt["tokens"], BEHIND]}, 1)
        _, device, _ = self.scheduler.kv_cache_manager.get_computed_blocks(request)
        connector = self.scheduler.connector
        if connector is None:
            return device, device
        if hasattr(connector, "on_new_request"):
            connector.on_new_request(request)
        for _ in range(200):
            more, _ = connector.get_num_new_matched_tokens(request, device)
            if more is not None:
                break
            self.step()  # a lookup is under way
            pause()
        return device, device + (more or 0)

    def shutdown(self):
        self.scheduler.shutdown()
        self.config_class.num_hash_lookahead_tokens = self.looks_ahead


def workload(seed):
    """Prompts that share beginnings, in the order in which they are served; and those that are asked for afterwards."""
    draw = random.Random(seed)
    roots = [[draw.randrange(VOCAB) for _ in range(BLOCK * draw.randrange(2, 9))] for _ in range(4)]
    prompts = []
    for _ in range(60):
        tokens = list(draw.choice(roots))
        if draw.random() < 0.5:
            tokens = tokens[:draw.randrange(1, len(tokens))]
        tokens += [draw.randrange(VOCAB) for _ in range(draw.randrange(0, 6 * BLOCK))]
        prompt = {"tokens": tokens}
        if draw.random() < 0.2:
            prompt["salt"] = draw.choice(["a", "b"])
        prompts.append(prompt)
        if draw.random() < 0.3:
            prompts.append(draw.choice(prompts))
    asked = [*prompts, *({"tokens": root} for root in roots)]
    asked += [{"tokens": prompt["tokens"]} for prompt in prompts if "salt" in prompt][:6]
    return prompts, asked


def record(name, scenario, model, out, seed):
    folder = tempfile.mkdtemp(dir=out)
    engine = Engine(scenario, model, folder)
    prompts, asked = workload(seed)
    for i in range(0, len(prompts), 3):
        engine.run(prompts[i:i + 3])
    # Questions before their answers change anything: events of lookups come after the last payload that counts.
    payloads = list(engine.recorder.payloads)
    told = {}
    for number, prompt in enumerate(asked):
        device, all_of_it = engine.reusable(prompt)
        told[f"{number}"] = {**prompt, "device": device, "reusable": all_of_it}
    changed = any(b"BlockRemoved" in payload for payload in engine.recorder.payloads[len(payloads):])
    engine.shutdown()
    with open(os.path.join(out, name + ".bin"), "wb") as file:
        for payload in payloads:
            file.write(len(payload).to_bytes(4, "big") + payload)
    register = {"block_size": BLOCK}
    if scenario["chunk"] > 1 and "self_describing_kv_events" not in scenario["extra"]:
        register["offload_chunk_tokens"] = scenario["chunk"] * BLOCK
    with open(os.path.join(out, name + ".json"), "w") as file:
        json.dump({"case": name, "system": "vLLM", "changed": changed, "register": register, "prompts": told}, file)
    print(f"{name}: {len(payloads)} payloads, {len(told)} prompts, "
          f"{sum(p['reusable'] > p['device'] for p in told.values())} with more than the device has", flush=True)


def main():
    model_folder, out, seed, *names = sys.argv[1:]
    from vllm.config import ModelConfig

    model = ModelConfig(model=model_folder, skip_tokenizer_init=True, dtype="float16", max_model_len=4096)
    for name in names or SCENARIOS:
        record(name, SCENARIOS[name], model, out, int(seed))


if __name__ == "__main__":
    main()
