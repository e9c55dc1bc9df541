// The cost of reading an engine's frame: stores of vLLM's map events, of 1 and of 32 blocks of 16
// tokens each, and removals of one block an event; read by the decoder, and unpacked to a tree by
// msgpack-cxx.
//
//   bazel run //indexer/kv_events:decoder_benchmark

#include <benchmark/benchmark.h>

#include <cstdint>
#include <msgpack.hpp>
#include <random>
#include <string>

#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {
namespace {

constexpr size_t kBlockSize = 16;
constexpr size_t kBlocks = 256;  // of a frame
constexpr uint64_t kVocabulary = 150'000;

void WriteStore(size_t blocks, std::mt19937_64* random, MsgpackWriter* out) {
  out->Map(11).Text("type").Text("BlockStored").Text("block_hashes").Array(blocks);
  for (size_t i = 0; i < blocks; ++i) out->Wide(0xcf, (*random)());
  out->Text("parent_block_hash").Wide(0xcf, (*random)());
  out->Text("token_ids").Array(blocks * kBlockSize);
  for (size_t i = 0; i < blocks * kBlockSize; ++i) out->Unsigned((*random)() % kVocabulary);
  out->Text("block_size").Unsigned(kBlockSize).Text("lora_id").Nil();
  out->Text("medium").Text("GPU").Text("lora_name").Nil();
  out->Text("extra_keys").Array(blocks);
  for (size_t i = 0; i < blocks; ++i) out->Nil();
  out->Text("group_idx").Unsigned(0).Text("kv_cache_spec_kind").Text("full_attention");
}

std::string Stores(size_t blocks_an_event) {
  std::mt19937_64 random(1);
  MsgpackWriter out;
  for (size_t i = 0; i < kBlocks / blocks_an_event; ++i) {
    WriteStore(blocks_an_event, &random, &out);
  }
  return BatchOf(kBlocks / blocks_an_event, out.bytes());
}

std::string Removals() {
  std::mt19937_64 random(1);
  MsgpackWriter out;
  for (size_t i = 0; i < kBlocks; ++i) {
    out.Map(4).Text("type").Text("BlockRemoved");
    out.Text("block_hashes").Array(1).Wide(0xcf, random());
    out.Text("medium").Text("GPU").Text("group_idx").Unsigned(0);
  }
  return BatchOf(kBlocks, out.bytes());
}

void SetBlocks(benchmark::State& state, size_t payload_bytes) {
  state.counters["per_block"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kBlocks),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["bytes/block"] = static_cast<double>(payload_bytes) / kBlocks;
}

void Decode(benchmark::State& state, const std::string& payload) {
  EngineDecoder decoder;
  EngineBatch batch;
  for (auto unused : state) {
    if (!decoder.Decode(payload, &batch).ok() || !batch.refused.empty()) {
      state.SkipWithError("refused");
      break;
    }
    benchmark::DoNotOptimize(batch.events.data());
  }
  SetBlocks(state, payload.size());
}

void Unpack(benchmark::State& state, const std::string& payload) {
  for (auto unused : state) {
    const msgpack::object_handle tree = msgpack::unpack(payload.data(), payload.size());
    benchmark::DoNotOptimize(tree.get());
  }
  SetBlocks(state, payload.size());
}

void BM_DecodeStores(benchmark::State& state) {
  Decode(state, Stores(static_cast<size_t>(state.range(0))));
}
void BM_UnpackStores(benchmark::State& state) {
  Unpack(state, Stores(static_cast<size_t>(state.range(0))));
}
BENCHMARK(BM_DecodeStores)->Arg(1)->Arg(32);
BENCHMARK(BM_UnpackStores)->Arg(1)->Arg(32);

void BM_DecodeRemovals(benchmark::State& state) { Decode(state, Removals()); }
void BM_UnpackRemovals(benchmark::State& state) { Unpack(state, Removals()); }
BENCHMARK(BM_DecodeRemovals);
BENCHMARK(BM_UnpackRemovals);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
