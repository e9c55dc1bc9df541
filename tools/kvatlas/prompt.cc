// Numbers of a prompt, from flags or a file, and their hashes by the contract.

#include "tools/kvatlas/prompt.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

namespace kvatlas {
namespace {

// Separators: a JSON list of numbers can be pasted as it is.
constexpr std::string_view kBetween = " \t\r\n,[]";

// Decimal, 0x…, or a negative number, which stands for the upper half of 64 bits. Nothing: no
// number.
std::optional<uint64_t> NumberOf(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    text.remove_prefix(2);
    base = 16;
  }
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!negative) return number;
  if (number > uint64_t{1} << 63) return std::nullopt;
  return uint64_t{0} - number;
}

// Flags split their values at commas; blanks separate as well.
std::string Joined(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += text + ' ';
  return joined;
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> NumbersIn(std::string_view text) {
  std::vector<uint64_t> numbers;
  for (size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const std::optional<uint64_t> number = NumberOf(word);
    if (!number.has_value())
      return absl::InvalidArgumentError("\"" + std::string(word.substr(0, 40)) +
                                        "\" is not a number");
    if (numbers.size() == kPromptNumbersMax)
      return absl::InvalidArgumentError("more than " + std::to_string(kPromptNumbersMax) +
                                        " numbers");
    numbers.push_back(*number);
    at = text.find_first_not_of(kBetween, end);
  }
  return numbers;
}

AskedPromptFlags::AskedPromptFlags(FlagSet* flags) {
  flags->Add("tokens", &tokens_, "the prompt's token ids");
  flags->Add("hashes", &hashes_, "or its sequence hashes");
  flags->Add("local_hashes", &local_hashes_, "or its local block hashes");
  flags->Add("file", &file_, "or a file with any of these; -: standard input");
  flags->AddChoice("as", &as_, "what is in the file", {"tokens", "hashes", "local_hashes", "text"});
  flags->Add("text", &text_, "or its text, as of a completion");
  flags->Add(
      "tokenizer", &tokenizer_,
      "what makes tokens of a text: frontend=HOST:PORT, or a tokenizer's file or folder; empty: "
      "the frontend that is asked, or the one of this host");
  flags->Add("lora_name", &lora_name_, "adapter of the prompt; with --tokens or --text");
  flags->Add("cache_salt", &cache_salt_, "salt of the prompt; with --tokens or --text");
  flags->Add("contract_seed", &contract_.seed, "seed S of the hash contract");
}

// 1. Exactly one of the flags, or a file whose form --as says.
// 2. A text is kept as it is; anything else is a list of numbers.
// 3. Token ids are checked for 32 bits.
absl::StatusOr<AskedPrompt> AskedPromptFlags::Read(std::istream& in) const {
  AskedPrompt prompt{.form = AskedForm::kTokens,
                     .numbers = {},
                     .lora_name = lora_name_,
                     .cache_salt = cache_salt_,
                     .contract = contract_};
  const int forms = !tokens_.empty() + !hashes_.empty() + !local_hashes_.empty() + !text_.empty() +
                    !file_.empty();
  if (forms != 1)
    return absl::InvalidArgumentError(
        "say the prompt in one way: --tokens, --text, --hashes, --local_hashes or --file");
  std::string text = Joined(!tokens_.empty()   ? tokens_
                            : !hashes_.empty() ? hashes_
                                               : local_hashes_);
  if (file_ == "-") {
    text.assign(std::istreambuf_iterator<char>(in), {});
  } else if (!file_.empty()) {
    std::ifstream file(file_);
    if (!file) return absl::InvalidArgumentError("--file: " + file_ + " cannot be read");
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (!text_.empty() || (!file_.empty() && as_ == "text")) {
    prompt.form = AskedForm::kText;
    prompt.text = text_.empty() ? text : text_;
    if (prompt.text.empty()) return absl::InvalidArgumentError("--file: " + file_ + " is empty");
    return prompt;
  }
  if (!hashes_.empty() || (!file_.empty() && as_ == "hashes")) prompt.form = AskedForm::kHashes;
  if (!local_hashes_.empty() || (!file_.empty() && as_ == "local_hashes"))
    prompt.form = AskedForm::kLocalHashes;
  absl::StatusOr<std::vector<uint64_t>> numbers = NumbersIn(text);
  if (!numbers.ok()) return numbers.status();
  prompt.numbers = *std::move(numbers);
  if (prompt.form != AskedForm::kTokens) return prompt;
  for (const uint64_t token : prompt.numbers)
    if (token > std::numeric_limits<TokenId>::max())
      return absl::InvalidArgumentError(std::to_string(token) + " is no token id");
  return prompt;
}

std::vector<TokenId> AskedPrompt::Tokens() const {
  std::vector<TokenId> tokens;
  tokens.reserve(numbers.size());
  for (const uint64_t number : numbers) tokens.push_back(static_cast<TokenId>(number));
  return tokens;
}

// Only full blocks have hashes: tokens behind the last full block are left out.
absl::StatusOr<std::vector<SequenceHash>> AskedPrompt::Sequence(uint32_t block_size) const {
  std::vector<LocalHash> locals;
  switch (form) {
    case AskedForm::kHashes: {
      std::vector<SequenceHash> sequence;
      for (const uint64_t number : numbers) sequence.push_back(SequenceHash{number});
      return sequence;
    }
    case AskedForm::kLocalHashes:
      for (const uint64_t number : numbers) locals.push_back(LocalHash{number});
      break;
    case AskedForm::kText:
      return absl::FailedPreconditionError("no tokens were made of the text");
    case AskedForm::kTokens:
      if (block_size == 0) return absl::InvalidArgumentError("the block size is unknown");
      locals = LocalHashes(Tokens(), {.block_size = block_size},
                           BlockSeed({.lora_name = lora_name, .cache_salt = cache_salt}, contract));
  }
  return SequenceHashes(locals, contract);
}

}  // namespace kvatlas
