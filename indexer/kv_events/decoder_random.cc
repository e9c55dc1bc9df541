#include "indexer/kv_events/decoder_random.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace kvatlas {
namespace {

constexpr std::string_view kKeys[] = {
    "type",
    "event_type",
    "block_hashes",
    "seq_hashes",
    "parent_block_hash",
    "parent_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "cache_salt",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
    "block_mm_infos",
    "mm_keys",
    "model_name",
    "tenant_id",
    "backend_id",
    "additional_salt",
    "base_block_idx",
    "dp_rank",
    "lookahead_token_ids",
    "block_offsets",
    "component_types",
    "component_type",
    "event_id",
    "timestamp",
    "",
    "tip",
};

constexpr std::string_view kTuplePlaces[] = {
    "block_hashes", "parent_block_hash", "token_ids",  "block_size", "lora_id",
    "medium",       "lora_name",         "extra_keys",
};

constexpr uint64_t kCorners[] = {
    0,     1,     31,       127,        128,         255,        256,
    65535, 65536, 1u << 31, UINT32_MAX, 0x100000000, 1ull << 63, UINT64_MAX,
};

}  // namespace

std::string_view RandomFrames::Pick(std::initializer_list<std::string_view> texts) {
  return texts.begin()[Below(texts.size())];
}

std::string RandomFrames::Event() {
  MsgpackWriter out;
  WriteEvent(&out);
  return out.bytes();
}

std::string RandomFrames::Payload() {
  MsgpackWriter events;
  const size_t count = OneIn(50) ? 15 + Below(30) : Below(5);
  events.Array(count);
  for (size_t i = 0; i < count; ++i) WriteEvent(&events);

  MsgpackWriter time;
  switch (Below(6)) {
    case 0:
      time.Unsigned(1700000000000 + Below(1000));
      break;
    case 1:
      WriteInteger(&time);
      break;
    case 2:
      WriteAnything(&time, 0);
      break;
    default:
      time.Float(1700000000.25 + static_cast<double>(Below(1000)));
  }
  MsgpackWriter rank;
  if (OneIn(4)) {
    WriteAnything(&rank, 0);
  } else if (OneIn(3)) {
    rank.Nil();
  } else {
    rank.Signed(static_cast<int64_t>(Below(6)) - 1);
  }

  MsgpackWriter out;
  if (OneIn(10)) {
    out.Map(4).Text("ts").Raw(time.bytes());
    if (OneIn(2)) out.Text("other").Nil().Text("events").Raw(events.bytes());
    out.Text("data_parallel_rank").Raw(rank.bytes()).Text("events").Raw(events.bytes());
    return out.bytes();
  }
  const size_t values = OneIn(8) ? Below(6) : 3;
  out.Array(values);
  if (values > 0) out.Raw(time.bytes());
  if (values > 1) out.Raw(events.bytes());
  if (values > 2) out.Raw(rank.bytes());
  for (size_t i = 3; i < values; ++i) WriteAnything(&out, 2);
  if (OneIn(10)) WriteAnything(&out, 1);
  return out.bytes();
}

std::string RandomFrames::Mutated(std::string payload) {
  for (size_t i = 1 + Below(4); i > 0 && !payload.empty(); --i) {
    const size_t at = Below(payload.size());
    const size_t length = Below(std::min<size_t>(payload.size() - at, 20) + 1);
    switch (Below(7)) {
      case 0:
        payload[at] = static_cast<char>(Below(256));
        break;
      case 1:
        payload[at] = static_cast<char>(payload[at] ^ (1 << Below(8)));
        break;
      case 2:
        payload.erase(at, length);
        break;
      case 3:
        payload.insert(at, payload.substr(at, length));
        break;
      case 4:
        payload.insert(at, 1, static_cast<char>(Below(256)));
        break;
      case 5:  // a header that claims much, or nothing that exists
        payload[at] = FromHex("c1c6c9dbdcdddedfd8")[Below(9)];
        break;
      default:
        payload.resize(at);
    }
  }
  return payload;
}

void RandomFrames::WriteEvent(MsgpackWriter* out) {
  if (OneIn(20)) return WriteAnything(out, 0);
  OneIn(2) ? WriteMap(out) : WriteTuple(out);
}

void RandomFrames::WriteTag(MsgpackWriter* out) {
  if (OneIn(20)) return WriteAnything(out, 1);
  if (OneIn(10)) {
    out->Text(Pick({"BlockInactive", "", "updated", "Ignored", "blockstored"}));
    return;
  }
  out->Text(Pick({"BlockStored", "BlockStored", "BlockStored", "BlockRemoved", "BlockRemoved",
                  "AllBlocksCleared", "stored", "removed", "cleared"}));
}

void RandomFrames::WriteKey(MsgpackWriter* out, std::string_view key) {
  OneIn(100) ? WriteAnything(out, 1) : void(out->Text(key));
}

void RandomFrames::WriteMap(MsgpackWriter* out) {
  // Fields that every store needs, then others, in any order, some twice.
  std::vector<std::string_view> keys = {OneIn(3) ? "event_type" : "type"};
  if (!OneIn(15)) keys.push_back(OneIn(4) ? "seq_hashes" : "block_hashes");
  if (!OneIn(15)) keys.push_back("token_ids");
  if (!OneIn(15)) keys.push_back("block_size");
  if (OneIn(8)) keys.push_back("block_offsets");
  for (size_t i = Below(OneIn(5) ? 25 : 8); i > 0; --i) {
    keys.push_back(kKeys[Below(std::size(kKeys))]);
  }
  if (OneIn(2)) std::shuffle(keys.begin(), keys.end(), random_);
  OneIn(10) ? void(out->Raw(FromHex("de00")).Raw(std::string(1, static_cast<char>(keys.size()))))
            : void(out->Map(keys.size()));
  for (const std::string_view key : keys) {
    WriteKey(out, key);
    WriteValue(out, key);
  }
}

void RandomFrames::WriteTuple(MsgpackWriter* out) {
  const uint64_t kind = Below(10);
  const bool stored = kind < 5;
  const bool removed = !stored && kind < 8;
  const size_t places = stored ? std::size(kTuplePlaces) : removed ? 2 : Below(3);
  const size_t tail = OneIn(2) ? 0 : Below(10);
  const size_t values = OneIn(4) ? Below(places + 1) : places + tail;
  out->Array(1 + values);
  if (stored) {
    out->Text("BlockStored");
  } else if (removed) {
    out->Text("BlockRemoved");
  } else {
    WriteTag(out);
  }
  for (size_t i = 0; i < std::min(values, places); ++i) {
    const std::string_view place = removed && i == 1 ? "medium" : kTuplePlaces[i];
    if (place == "lora_name" && OneIn(3)) {
      static constexpr std::string_view kMetadata[] = {
          "cache_salt", "lora_name",  "session_id",     "component_types",
          "medium",     "unheard_of", "component_type",
      };
      const size_t pairs = Below(3);
      out->Map(pairs);
      for (size_t pair = 0; pair < pairs; ++pair) {
        const std::string_view key = kMetadata[Below(std::size(kMetadata))];
        WriteKey(out, key);
        WriteValue(out, key);
      }
    } else if (place == "lora_name" && OneIn(3)) {
      WriteValue(out, OneIn(3) ? "component_type" : "component_types");
    } else {
      WriteValue(out, place);
    }
  }
  if (values > places) WriteTail(out, values - places);
}

void RandomFrames::WriteTail(MsgpackWriter* out, size_t values) {
  static constexpr std::string_view kFixed[] = {
      "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership"};
  static constexpr std::string_view kLegacy[] = {
      "block_mm_infos", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"};
  const bool fixed = OneIn(2);
  if (OneIn(4)) {  // of a removal
    WriteLabel(out);
    --values;
  }
  for (size_t i = 0; i < values; ++i) {
    const std::string_view key = fixed ? kFixed[i % std::size(kFixed)] : kLegacy[i % 4];
    OneIn(4) ? void(out->Nil()) : WriteValue(out, key);
  }
}

void RandomFrames::WriteValue(MsgpackWriter* out, std::string_view key) {
  if (OneIn(25)) return WriteAnything(out, 0);
  if (key == "type" || key == "event_type") return WriteTag(out);
  if (key == "block_hashes" || key == "seq_hashes") return WriteHashes(out);
  if (key == "token_ids") return WriteTokens(out);
  if (OneIn(5)) return void(out->Nil());
  if (key == "parent_block_hash" || key == "parent_hash") return WriteHash(out);
  if (key == "extra_keys") return WriteExtraKeys(out);
  if (key == "block_mm_infos" || key == "mm_keys") return WriteMultimodal(out);
  if (key == "block_size" || key == "group_idx" || key == "kv_cache_spec_sliding_window" ||
      key == "base_block_idx") {
    return void(out->Unsigned(Below(40)));
  }
  if (key == "lora_id" || key == "dp_rank") return WriteInteger(out);
  if (key == "lookahead_token_ids") return WriteLookahead(out);
  if (key == "block_offsets") return WriteOffsets(out);
  if (key == "component_type") return WriteLabel(out);
  if (key == "component_types") {
    const size_t labels = Below(4);
    out->Array(labels);
    for (size_t i = 0; i < labels; ++i) OneIn(40) ? WriteAnything(out, 1) : WriteLabel(out);
    return;
  }
  WriteText(out);
}

void RandomFrames::WriteHash(MsgpackWriter* out) {
  switch (Below(12)) {
    case 0:
      return void(out->Signed(-static_cast<int64_t>(random_() >> Below(64) >> 1)));
    case 1:
      return void(out->Bytes(std::string(Below(40), static_cast<char>(Below(256)))));
    case 2:
      return void(out->Text(Pick({"7b0bf7bf7fd01682", "0x1F", "abc", "0x", "xyz",
                                  "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf"})));
    case 3:
      return void(out->Unsigned(kCorners[Below(std::size(kCorners))]));
    case 4:
      if (OneIn(5)) return void(out->Bytes(std::string(250 + Below(20), 'h')));
      if (OneIn(5)) return void(out->Text(std::string(505 + Below(20), 'a')));
      [[fallthrough]];
    default:
      return void(out->Wide(0xcf, random_()));
  }
}

void RandomFrames::WriteHashes(MsgpackWriter* out) {
  if (OneIn(15)) return void(out->Nil());
  const size_t count = OneIn(20) ? 10 + Below(30) : Below(5);
  const bool plain = OneIn(2);
  out->Array(count);
  for (size_t i = 0; i < count; ++i) {
    if (OneIn(80)) {
      WriteAnything(out, 1);
    } else if (plain) {
      out->Wide(0xcf, random_());
    } else {
      WriteHash(out);
    }
  }
}

void RandomFrames::WriteToken(MsgpackWriter* out, bool strange) {
  if (strange && OneIn(15)) {
    switch (Below(5)) {
      case 0:
        return void(out->Signed(-1 - static_cast<int64_t>(Below(1000))));
      case 1:
        return void(out->Unsigned(0x100000000 + Below(9)));
      case 2:
        return WriteText(out);
      case 3:
        return void(out->Bytes("img"));
      default:
        return OneIn(3) ? WriteAnything(out, 1) : void(out->Text("image"));
    }
  }
  switch (Below(8)) {
    case 0:
      return void(out->Unsigned(Below(128)));
    case 1:
      return void(out->Unsigned(128 + Below(128)));
    case 2:
      return void(out->Unsigned(Below(65536)));
    case 3:
      return void(out->Wide(static_cast<uint8_t>(0xcc + Below(4)), Below(128)));
    case 4:  // signed forms of what is not negative
      return void(out->Wide(static_cast<uint8_t>(0xd0 + Below(4)), Below(128)));
    case 5:
      return void(out->Unsigned(std::numeric_limits<uint32_t>::max() - Below(3)));
    default:
      return void(out->Unsigned(Below(150000)));
  }
}

void RandomFrames::WriteLookahead(MsgpackWriter* out) {
  if (OneIn(10)) return WriteTokens(out);
  const size_t blocks = Below(6);
  const size_t of_each = OneIn(3) ? 1 + Below(OneIn(10) ? 40 : 4) : 1;
  out->Array(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    const size_t tokens = OneIn(20) ? Below(3) : of_each;
    out->Array(tokens);
    for (size_t j = 0; j < tokens; ++j) WriteToken(out, OneIn(20));
  }
}

// As many as there often are hashes.
void RandomFrames::WriteOffsets(MsgpackWriter* out) {
  const size_t count = Below(5);
  out->Array(count);
  uint64_t offset = 0;
  for (size_t i = 0; i < count; ++i) {
    OneIn(60) ? WriteInteger(out) : void(out->Unsigned(offset));
    offset += 1 + (OneIn(3) ? Below(300) : 0);
  }
}

void RandomFrames::WriteLabel(MsgpackWriter* out) {
  out->Text(Pick({"full", "swa", "mamba", "c128", "Full", ""}));
}

void RandomFrames::WriteTokens(MsgpackWriter* out) {
  if (OneIn(15)) return void(out->Nil());
  const size_t count = OneIn(4) ? Below(200) : Below(20);
  const bool strange = OneIn(4);
  out->Array(count);
  if (OneIn(4)) {
    std::string second = MsgpackWriter().Unsigned(Below(100000)).bytes();
    for (size_t i = 0; i < count; ++i) {
      const std::string first = second;
      MsgpackWriter next;
      WriteToken(&next, strange);
      second = next.bytes();
      if (strange && OneIn(40)) {
        WriteAnything(out, 1);
      } else {
        out->Array(2).Raw(strange && OneIn(30) ? second : first).Raw(second);
      }
    }
    return;
  }
  for (size_t i = 0; i < count; ++i) WriteToken(out, strange);
}

void RandomFrames::WriteExtraKeys(MsgpackWriter* out) {
  const size_t blocks = Below(5);
  out->Array(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    if (OneIn(2)) {
      out->Nil();
      continue;
    }
    const size_t keys = Below(4);
    out->Array(keys);
    for (size_t key = 0; key < keys; ++key) {
      switch (Below(8)) {
        case 0:
          out->Bytes("\x01\x02");
          break;
        case 1:
          WriteInteger(out);
          break;
        case 2:
          out->Float(0.5);
          break;
        case 3:
          out->Bool(OneIn(2));
          break;
        case 4:
          OneIn(10) ? WriteAnything(out, 1) : void(out->Text("dynamo-cache-salt:t"));
          break;
        case 5: {
          const size_t values = OneIn(5) ? Below(4) : 2;
          out->Array(values);
          if (values > 0) WriteText(out);
          if (values > 1) WriteInteger(out);
          if (values > 2) WriteAnything(out, 2);
          break;
        }
        default:
          WriteText(out);
      }
    }
  }
}

void RandomFrames::WriteMultimodal(MsgpackWriter* out) {
  const size_t blocks = Below(4);
  out->Array(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    if (OneIn(3)) {
      out->Nil();
      continue;
    }
    if (OneIn(2)) {
      out->Map(2).Text("note");
      WriteAnything(out, 1);
      out->Text(OneIn(20) ? "mm_object" : "mm_objects");
    }
    const size_t objects = Below(3);
    out->Array(objects);
    for (size_t object = 0; object < objects; ++object) {
      if (OneIn(20)) {
        WriteAnything(out, 0);
      } else if (OneIn(2)) {
        out->Map(2).Text("mm_hash").Unsigned(random_()).Text("offsets");
        out->Array(1).Array(2).Unsigned(0).Unsigned(Below(16));
      } else {
        out->Map(3).Text("type").Text("mm_key").Text(OneIn(20) ? "hush" : "hash");
        const bool digest = OneIn(2);
        out->Text(digest ? std::string(64, static_cast<char>('a' + Below(6))) : "image-7");
        out->Text("start_offset").Unsigned(Below(16));
      }
    }
  }
}

void RandomFrames::WriteText(MsgpackWriter* out) {
  if (OneIn(30)) return void(out->Text(std::string(Below(300), 'x')));
  out->Text(Pick({"", "GPU", "CPU", "CPU_PINNED", "DISK", "my-lora", "tenant-a", "LOCAL", "REMOTE",
                  "full_attention", "sliding_window", "kvcr", "\xff\x00"}));
}

void RandomFrames::WriteInteger(MsgpackWriter* out) {
  const uint64_t corner = kCorners[Below(std::size(kCorners))];
  OneIn(3) ? void(out->Signed(-1 - static_cast<int64_t>(corner >> 1)))
           : void(out->Unsigned(corner));
}

void RandomFrames::WriteAnything(MsgpackWriter* out, int depth) {
  switch (Below(depth < 3 ? 11 : 8)) {
    case 0:
      return void(out->Nil());
    case 1:
      return void(out->Bool(OneIn(2)));
    case 2:
      return WriteInteger(out);
    case 3:
      return void(out->Float(static_cast<double>(Below(1000)) / 8));
    case 4:
      return WriteText(out);
    case 5:
      return void(out->Bytes(std::string(Below(20), 'b')));
    case 6:
      return void(out->Extension(7, std::string(Below(10), 'e')));
    case 7:  // a whole float of 32 bits, and the fixed extensions
      return void(
          out->Raw(FromHex(Pick({"ca3fc00000", "d40101", "d5010102", "d60101020304",
                                 "d7010102030405060708", "ca7fc00000", "cb7ff0000000000000"}))));
    case 8: {
      const size_t count = Below(5);
      out->Array(count);
      for (size_t i = 0; i < count; ++i) WriteAnything(out, depth + 1);
      return;
    }
    case 9: {
      const size_t pairs = Below(4);
      out->Map(pairs);
      for (size_t i = 0; i < 2 * pairs; ++i) WriteAnything(out, depth + 1);
      return;
    }
    default:
      return WriteTokens(out);
  }
}

}  // namespace kvatlas
