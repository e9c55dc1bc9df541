// The prompt that a command asks about: token ids, hashes or text, on the command line or in a
// file.
//
//   --tokens 1,2,3,…         token ids
//   --hashes 0x1a2b,…        sequence hashes, decimal or 0x…
//   --local_hashes …         local block hashes; negative ones as signed numbers
//   --text "…"               a text, of which a tokenizer makes token ids (`text_prompt.h`)
//   --file PATH --as tokens|hashes|local_hashes|text      numbers between blanks, commas, brackets, or the text; "-": standard input
//
// *Bounds*: `kPromptNumbersMax` numbers.

#ifndef KVATLAS_TOOLS_KVATLAS_PROMPT_H_
#define KVATLAS_TOOLS_KVATLAS_PROMPT_H_

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/process/flags.h"

namespace kvatlas {

inline constexpr size_t kPromptNumbersMax = size_t{64} << 20;

enum class AskedForm { kTokens, kHashes, kLocalHashes, kText };

struct AskedPrompt {
  AskedForm form = AskedForm::kTokens;
  std::vector<uint64_t> numbers;
  std::string text = {};  // of `kText`, until it is made tokens of
  std::string lora_name;
  std::string cache_salt;
  HashContract contract;

  // INVALID_ARGUMENT: a form from which there is no way to that. `block_size` matters to tokens.
  absl::StatusOr<std::vector<SequenceHash>> Sequence(uint32_t block_size) const;
  std::vector<TokenId> Tokens() const;
};

class AskedPromptFlags {
 public:
  explicit AskedPromptFlags(FlagSet* flags);
  // INVALID_ARGUMENT: none, more than one, or not of that form.
  absl::StatusOr<AskedPrompt> Read(std::istream& in) const;
  // The maker of tokens of a text: frontend=HOST:PORT, a file or a folder; empty: not said.
  const std::string& tokenizer() const { return tokenizer_; }

 private:
  std::vector<std::string> tokens_;
  std::vector<std::string> hashes_;
  std::vector<std::string> local_hashes_;
  std::string file_;
  std::string as_ = "tokens";
  std::string text_;
  std::string tokenizer_;
  std::string lora_name_;
  std::string cache_salt_;
  HashContract contract_;
};

// All numbers in a text. INVALID_ARGUMENT, quoting what is none.
absl::StatusOr<std::vector<uint64_t>> NumbersIn(std::string_view text);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_PROMPT_H_
