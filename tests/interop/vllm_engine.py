"""vLLM's own scheduler, cache manager, block pool and event publisher, without a GPU or a model.

What runs is the code of the installed package: `Scheduler` with its `KVCacheManager`, block pool, request hashing
and `ZmqEventPublisher`. What stands in: the model (tokens come from `next_token`), torch (never computed with
here), and the configuration, of which only what the scheduler reads is there.
"""

import math
import os
import sys
from types import SimpleNamespace

import stubs
from engine_process import Engine, next_token

# Packages whose __init__ pulls in the rest of vLLM.
_BARE = ["", "config", "distributed", "distributed.ec_transfer", "distributed.ec_transfer.ec_connector",
         "distributed.kv_transfer", "distributed.kv_transfer.kv_connector", "lora", "multimodal", "platforms",
         "v1", "v1.attention", "v1.attention.backends", "v1.core", "v1.core.sched", "v1.metrics",
         "v1.spec_decode", "v1.structured_output", "compilation"]
_INERT = ["multimodal.media", "utils.torch_utils", "compilation.cuda_graph", "multimodal.encoder_budget",
          "distributed.kv_transfer.kv_connector.factory", "distributed.kv_transfer.kv_connector.v1",
          "distributed.kv_transfer.kv_connector.v1.base",
          "distributed.kv_transfer.kv_connector.v1.metrics", "distributed.ec_transfer.ec_connector.base",
          "distributed.ec_transfer.ec_connector.factory", "distributed.ec_transfer.ec_connector.metrics",
          "distributed.aux_output_connector.connector", "v1.metrics.perf", "outputs",
          "pooling_params"]


def load(source):
    """Imports what is needed of the package whose files lie in `source`."""
    stubs.install(never=("msgspec", "zmq", "cbor2", "xxhash", "numpy", "pydantic", "regex"))
    sys.path.insert(0, source)
    stubs.package("vllm", os.path.join(source, "vllm"))
    for name in _BARE[1:]:
        stubs.package("vllm." + name, os.path.join(source, "vllm", *name.split(".")))
    stubs.stub(*("vllm." + name for name in _INERT))


def hash_function(name):
    from vllm.utils.hashing import get_hash_fn_by_name

    return get_hash_fn_by_name(name)


def group_of(group, block_size):
    """What a group of layers is: kind ("full", "window", "chunk" or "mamba"), block_size, window or chunk (tokens), eagle
    (draft layers are in it), head_size."""
    if group == "full":
        group = {"kind": "full"}
    elif isinstance(group, int):
        group = {"kind": "window", "window": group}
    return {"block_size": block_size, **group}


class VllmEngine(Engine):
    def __init__(self, source):
        super().__init__()
        import zmq

        self.watch(zmq)
        load(source)

    def open(self, command):
        """Keys: blocks, block_size (of the main class), vocab, hash (algorithm), rank, endpoint, replay_endpoint, topic,
        groups (of layers: "full", the tokens of a sliding window, or what `group_of` reads), running (requests at once),
        batch_tokens (per step), lookahead (tokens that hashes look ahead), report ("full": hits are announced again),
        eagle (speculation drops the last block), retention (interval in tokens, 0, or none), hash_block_size."""
        from vllm.config.kv_events import KVEventsConfig
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import KVCacheConfig

        self.block_size = command["block_size"]
        self.vocab = command["vocab"]
        hash_fn = hash_function(command["hash"])
        kv_cache_utils.init_none_hash(hash_fn)
        lookahead = command.get("lookahead", 0)
        self.groups = [group_of(group, self.block_size) for group in command.get("groups", ["full"])]
        sizes = [group["block_size"] for group in self.groups]
        # As kv_cache_utils.resolve_kv_cache_block_sizes: hits are aligned to all groups, hashes cover the largest common part.
        aligned = math.lcm(*sizes)
        hashed = command.get("hash_block_size") or math.gcd(*sizes)
        self.hasher = kv_cache_utils.get_request_block_hasher(hashed, hash_fn, lookahead)
        mains = [i for i, group in enumerate(self.groups) if group["kind"] == "full"]
        # Without full attention: the one class that there is, or the first.
        self.main_groups = mains or [0]
        self.hashes_of_block = self.groups[self.main_groups[0]]["block_size"] // hashed
        self.report = command.get("report")
        blocks = command["blocks"]
        config = self._config(command, blocks, aligned, lookahead, KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=command["endpoint"],
            replay_endpoint=command.get("replay_endpoint"), topic=command.get("topic", "")))
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], hash_block_size=hashed,
                kv_cache_groups=[self._group_spec(i, group) for i, group in enumerate(self.groups)],
                prefix_cache_retention_interval=command.get("retention")),
            structured_output_manager=SimpleNamespace(accept_tokens=lambda *_, **__: True),
            block_size=aligned, hash_block_size=hashed)
        self.publisher = self.scheduler.kv_event_publisher
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.batches = 0
        publish = self.publisher.publish

        def counted(batch):
            self.batches += 1
            publish(batch)

        self.publisher.publish = counted
        self.requests = 0
        self.preemptions = 0
        self.copies_max = 1
        return {"endpoint": self._bound(self.publisher._pub),
                "replay_endpoint": self._bound(self.publisher._replay), "rank": command["rank"]}

    @staticmethod
    def _bound(socket):
        import zmq

        return socket.getsockopt_string(zmq.LAST_ENDPOINT) if socket is not None else None

    @staticmethod
    def _group_spec(number, group):
        """The engine's own description of a group; pages have no bytes here."""
        from vllm.v1.kv_cache_interface import (ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheGroupSpec,
                                                MambaSpec, SlidingWindowSpec)

        size = {"block_size": group["block_size"]}
        # Groups whose layers differ in shape are looked up one by one.
        shape = {"num_kv_heads": 1, "head_size": group.get("head_size", 1), "dtype": None, **size}
        if group["kind"] == "full":
            spec = FullAttentionSpec(**shape)
        elif group["kind"] == "window":
            spec = SlidingWindowSpec(sliding_window=group["window"], **shape)
        elif group["kind"] == "chunk":
            spec = ChunkedLocalAttentionSpec(attention_chunk_size=group["chunk"], **shape)
        else:
            spec = MambaSpec(shapes=(), dtypes=(), mamba_cache_mode="align", **size)
        return KVCacheGroupSpec([f"layer-{number}"], spec, is_eagle_group=group.get("eagle", False))

    @staticmethod
    def _config(command, blocks, aligned, lookahead, events):
        """A configuration of which everything that is read exists, and nothing else."""
        speculative = SimpleNamespace(
            num_speculative_tokens_per_batch_size=None, max_num_new_slots_for_drafting=0, disable_eagle_block_drop=False, use_eagle=lambda: True,
            use_eagle_block_drop=lambda: True, needs_eagle_block_drop=lambda: True) if command.get("eagle") else None
        return SimpleNamespace(
            scheduler_config=SimpleNamespace(
                max_num_seqs=command.get("running", 8), max_num_active_seqs=None,
                max_num_scheduled_tokens=None, max_num_batched_tokens=command.get("batch_tokens", 512),
                long_prefill_token_threshold=0, long_prefill_token_threshold_adaptive=False,
                policy="fcfs", watermark=0.0, prefill_schedule_interval=1,
                scheduler_reserve_full_isl=False, enable_chunked_prefill=True, async_scheduling=False,
                disable_chunked_mm_input=False),
            cache_config=SimpleNamespace(
                num_gpu_blocks=blocks, enable_prefix_caching=True, block_size=aligned,
                enable_mamba_shared_prefix_checkpoint=False,
                mamba_cache_mode="align" if "mamba" in str(command.get("groups")) else "none"),
            model_config=SimpleNamespace(
                uses_mrope=False, is_encoder_decoder=False, max_model_len=1 << 16, runner_type="generate",
                is_diffusion=False, supports_multimodal_inputs=False, return_sampling_mask=False,
                skip_tokenizer_init=True),
            parallel_config=SimpleNamespace(
                data_parallel_index=command["rank"], data_parallel_rank=command["rank"],
                data_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1,
                pipeline_parallel_size=1),
            observability_config=SimpleNamespace(
                per_request_spec_decode_metrics="none", kv_cache_metrics=False, enable_mfu_metrics=False),
            ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
            aux_output_config=SimpleNamespace(enabled=False),
            lora_config=SimpleNamespace(max_loras=64) if command.get("loras") else None,
            kv_events_config=events, kv_transfer_config=None, ec_transfer_config=None,
            speculative_config=speculative, is_mm_encoder_only=False, num_speculative_tokens=0,
            num_lookahead_tokens=0, num_prefill_lookahead_tokens=0, num_hash_lookahead_tokens=lookahead,
            max_in_flight_tokens=command.get("batch_tokens", 512), max_concurrent_batches=1,
            use_v2_model_runner=False)

    def publisher_socket(self):
        return self.publisher._pub

    def published(self):
        return self.batches

    def _request(self, prompt, outputs):
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self.requests += 1
        lora = prompt.get("lora")
        return Request(
            request_id=f"r{self.requests}", prompt_token_ids=list(prompt["tokens"]),
            sampling_params=SamplingParams(
                max_tokens=max(outputs, 1), ignore_eos=True,
                extra_args={"kv_cache_report_mode": self.report} if self.report else None),
            pooling_params=None, cache_salt=prompt.get("salt"),
            lora_request=LoRARequest(lora, 1 + sum(lora.encode()) % 60, "/adapters/" + lora)
            if lora else None,
            block_hasher=self.hasher)

    def run(self, jobs):
        """Steps as the engine core takes them: schedule, "execute", update."""
        from vllm.v1.outputs import ModelRunnerOutput

        waiting = sorted(range(len(jobs)), key=lambda i: jobs[i].get("at", 0))
        requests = {}
        started = [None] * len(jobs)
        step = 0
        while waiting or self.scheduler.has_requests():
            while waiting and (jobs[waiting[0]].get("at", 0) <= step or not self.scheduler.has_requests()):
                i = waiting.pop(0)
                request = self._request(jobs[i], jobs[i]["outputs"])
                requests[request.request_id] = request
                started[i] = request
                self.scheduler.add_request(request)
            step += 1
            output = self.scheduler.schedule()
            ids = list(output.num_scheduled_tokens)
            sampled = []
            for name in ids:
                request = requests[name]
                done = request.num_computed_tokens >= request.num_tokens
                sampled.append([next_token(request._all_token_ids, self.vocab)] if done else [])
            self.scheduler.update_from_output(output, ModelRunnerOutput(
                req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)},
                sampled_token_ids=sampled))
        self.preemptions += sum(request.num_preemptions for request in started)
        return [list(request._output_token_ids) for request in started]

    def reset(self):
        cleared = self.scheduler.reset_prefix_cache()
        return bool(cleared)

    def depth(self, prompt):
        """Leading blocks of the main class that the engine would not compute again if more tokens followed the prompt."""
        # A token that no prompt has, so that the engine may reuse all of the prompt and nothing behind it.
        request = self._request({**prompt, "tokens": list(prompt["tokens"]) + [self.vocab]}, 1)
        request.kv_cache_report_mode = "incremental"
        _, tokens, _ = self.scheduler.kv_cache_manager.get_computed_blocks(request)
        return tokens // self.groups[self.main_groups[0]]["block_size"]

    def held(self, prompt):
        """Leading blocks that every group of the main class has under the engine's own hashes."""
        request = self._request(prompt, 1)
        hashes = request.block_hashes[self.hashes_of_block - 1::self.hashes_of_block]
        for depth, block_hash in enumerate(hashes):
            if self.pool.get_cached_block(block_hash, self.main_groups) is None:
                return depth
        return len(hashes)

    def facts(self):
        cache = self.pool.cached_block_hash_to_block._cache
        return {"resident": len(cache),
                "copies": sum(len(b) - 1 for b in cache.values() if isinstance(b, dict)),
                "preemptions": self.preemptions, "batches": self.batches,
                "stubs_called": sorted(stubs.CALLED)}


if __name__ == "__main__":
    VllmEngine(sys.argv[1]).serve()
