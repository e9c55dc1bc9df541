// The text form of a worker, NAME[:RANK]=ENDPOINT[;OPTION…], and the difference between two lists
// of workers.

#include "indexer/kv_events/worker_flags.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/base/engine_addresses.h"

namespace kvatlas {
namespace {

std::optional<uint32_t> Number(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The text before the first `separator`, which is taken off; all of it when there is none.
std::string_view TakeUntil(char separator, std::string_view* text) {
  const size_t at = text->find(separator);
  const std::string_view head = text->substr(0, at);
  *text = at == std::string_view::npos ? std::string_view() : text->substr(at + 1);
  return head;
}

// Sets one option. Numbers that may not be 0 use 0 for a text that is no number. False: no such
// option, or not of its form.
bool SetOption(std::string_view option, EngineRegistration* worker) {
  std::string_view value = option;
  const std::string_view name = TakeUntil('=', &value);
  if (name == "bind") {
    worker->bind = true;
    return option == "bind";
  }
  if (value.empty()) return false;
  if (name == "replay") {
    worker->replay_endpoint = value;
  } else if (name == "topic") {
    worker->topic = value;
  } else if (name == "server_key") {
    worker->server_key = value;
  } else if (name == "lora") {
    worker->lora_name = value;
  } else if (name == "salt") {
    worker->additional_salt = value;
  } else if (name == "count_copies") {
    worker->counts_copies = value == "true";
    return value == "true" || value == "false";
  } else if (name == "image_token") {
    worker->image_token = Number(value);
    return worker->image_token.has_value();
  } else if (name == "url") {
    worker->url = value;
  } else if (name == "store") {
    worker->store = value;
  } else if (name == "store_tiers") {
    worker->store_tiers = value;
    return ParseStoreTiers(value).ok();
  } else if (name == "silent_blocks" || name == "silent_seconds") {
    uint32_t& to = name == "silent_blocks" ? worker->silent_blocks : worker->silent_seconds;
    to = Number(value).value_or(0);
    return to != 0;
  } else if (name == "first_rank") {
    const std::optional<uint32_t> rank = Number(value);
    worker->first_rank = rank.value_or(0);
    return rank.has_value();
  } else if (name == "eagle_drop") {
    worker->eagle_drop = value;
    return ParseEagleDrop(value).ok();
  } else if (name == "chunk_tokens") {
    worker->chunk_tokens = Number(value).value_or(0);
    return worker->chunk_tokens != 0;
  } else if (name == "window_tokens") {
    worker->window_tokens = Number(value).value_or(0);
    return worker->window_tokens != 0;
  } else if (name == "hybrid") {
    worker->hybrid = value == "true";
    return value == "true" || value == "false";
  } else if (name == "offload_chunk_tokens") {
    worker->offload_chunk_tokens = Number(value).value_or(0);
    return worker->offload_chunk_tokens != 0;
  } else if (name == "silent_tiers") {
    worker->silent_tiers = value;
    return ParseSilentTiers(value).ok();
  } else if (name == "type") {
    worker->engine_type = value;
  } else if (name == "block_size") {
    const std::optional<uint32_t> size =
        value == kBlockSizeAutoText ? kBlockSizeAuto : Number(value);
    worker->block_size = size.value_or(0);
    return size.has_value();
  } else {
    return false;
  }
  return true;
}

// The name, with a rank behind its last colon when that is a number.
void SetInstance(std::string_view text, EngineRegistration* worker) {
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    if (const std::optional<uint32_t> rank = Number(text.substr(colon + 1)); rank.has_value()) {
      worker->rank = *rank;
      text = text.substr(0, colon);
    }
  }
  worker->instance = text;
}

}  // namespace

// The first entry that is wrong refuses the whole list.
absl::StatusOr<std::vector<EngineRegistration>> ParseWorkers(
    const std::vector<std::string>& workers, const EngineRegistration& of_all) {
  std::vector<EngineRegistration> parsed;
  for (const std::string& text : workers) {
    const auto refuse = [&](std::string_view why) {
      return absl::InvalidArgumentError("worker \"" + text + "\": " + std::string(why));
    };
    EngineRegistration worker = of_all;
    worker.from_flags = true;
    std::string_view rest = text;
    std::string_view options = rest;
    rest = TakeUntil(';', &options);
    if (rest.find('=') == std::string_view::npos) return refuse("not NAME[:RANK]=ENDPOINT");
    SetInstance(TakeUntil('=', &rest), &worker);
    worker.endpoint = rest;
    if (worker.instance.empty()) return refuse("no name");
    while (!options.empty()) {
      const std::string_view option = TakeUntil(';', &options);
      if (!SetOption(option, &worker))
        return refuse("\"" + std::string(option) + "\" is no option of a worker");
    }
    if (worker.block_size == 0)
      return refuse("no block size: say --block_size, or block_size=auto");
    if (absl::Status bad = CheckRegistration(worker, EngineAddresses()); !bad.ok())
      return refuse({bad.message().data(), bad.message().size()});
    const bool again = std::any_of(parsed.begin(), parsed.end(), [&](const auto& other) {
      return other.instance == worker.instance && other.rank == worker.rank;
    });
    if (again) return refuse(RankText(worker.instance, worker.rank) + " is there twice");
    parsed.push_back(std::move(worker));
  }
  return parsed;
}

// Options alone, by way of an entry with a made-up endpoint: the same checks hold.
absl::StatusOr<EngineRegistration> WithWorkerOptions(const EngineRegistration& of_all,
                                                     const std::vector<std::string>& options) {
  std::string worker = "pod=tcp://127.0.0.1:1";
  for (const std::string& option : options) worker += ";" + option;
  const auto parsed = ParseWorkers({worker}, of_all);
  if (!parsed.ok()) return parsed.status();
  return parsed->front();
}

// O(before × after) comparisons. A worker that differs in anything is both gone and new.
WorkerChanges ChangesOf(const std::vector<EngineRegistration>& before,
                        const std::vector<EngineRegistration>& after) {
  WorkerChanges changes;
  for (const EngineRegistration& worker : before)
    if (std::find(after.begin(), after.end(), worker) == after.end())
      changes.gone.push_back(worker);
  for (const EngineRegistration& worker : after)
    if (std::find(before.begin(), before.end(), worker) == before.end())
      changes.come.push_back(worker);
  return changes;
}

}  // namespace kvatlas
