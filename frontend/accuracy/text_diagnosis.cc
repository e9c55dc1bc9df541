// The engine makes other tokens of a prompt: BOS, template or tokenizer, by how many it counts.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "frontend/accuracy/diagnosis.h"
#include "frontend/accuracy/diagnostician.h"
#include "frontend/accuracy/evidence_text.h"
#include "frontend/accuracy/patterns.h"

namespace kvatlas {
namespace {

// `PromptTokens::source`: the URL that was asked, or a name and file.
// Tokens from an engine come by http.
bool IsOfEngine(std::string_view tokenizer) { return tokenizer.starts_with("http"); }

}  // namespace

// The engine counts another number of tokens. The cause by how the difference behaves:
//   * our tokens are the engine's own: only some requests can differ (`kPromptDiffers`)
//   * always exactly one more or less: BOS (`NameBos`)
//   * completions differ too: tokenizer
//   * chats alone were seen: one of two, weighed by whether the difference grows with the prompt,
//     as a tokenizer's does
void Diagnostician::NameText(const Lengths& lengths, bool chats_alone, Evidence evidence,
                             const Decisions& decisions) {
  if (!lengths.differ()) return;
  evidence.push_back("the engine counts another number of tokens in " +
                     Share(lengths.differing, lengths.compared, "prompts") + ": " +
                     Signed(lengths.least) + " to " + Signed(lengths.most));
  if (TokensAreTheEngines()) {
    evidence.push_back(TokensText());
    return Add(Cause::kPromptDiffers, 0.85, std::move(evidence), decisions);
  }
  if (lengths.constant() && (lengths.least == lengths.most) &&
      (lengths.least == 1 || lengths.least == -1)) {
    return NameBos(lengths, std::move(evidence), decisions);
  }
  if (!chats_alone) {
    evidence.push_back("plain completions differ too");
    return Add(Cause::kTokenizer, 0.85, std::move(evidence), decisions);
  }
  evidence.push_back("no plain completion was among them, which would tell which of the two");
  const bool proportional = lengths.proportional();
  evidence.push_back(proportional ? "the difference grows with the prompt, " +
                                        Number(lengths.per_token * 100) + " in 100 tokens"
                                  : "the difference does not grow with the prompt");
  AddAlternatives({{Cause::kTokenizer, proportional ? 0.6 : 0.3},
                   {Cause::kChatTemplate, proportional ? 0.35 : 0.6}},
                  evidence, decisions);
}

// Which side has the token, and whether it is one too many or one too few: by how our prompts
// begin, where that is known.
void Diagnostician::NameBos(const Lengths& lengths, Evidence evidence, const Decisions& decisions) {
  size_t with = 0, without = 0;
  for (const Comparison& c : e_.comparisons) {
    with += c.begins_with_bos == true;
    without += c.begins_with_bos == false;
  }
  if (lengths.least < 0) {
    const bool ours_twice = BeginTwice();
    evidence.push_back(ours_twice ? "the prompts as routed begin with the same token twice"
                                  : "the prompts as routed begin with one token only");
    return Add(ours_twice ? Cause::kBosDoubled : Cause::kBosMissing, 0.8, std::move(evidence),
               decisions);
  }
  if (without > with) {
    evidence.push_back("the prompts as routed do not begin with BOS");
    Add(Cause::kBosMissing, 0.8, std::move(evidence), decisions);
  } else if (with > 0) {
    evidence.push_back("the prompts as routed begin with BOS");
    Add(Cause::kBosDoubled, 0.8, std::move(evidence), decisions);
  } else {
    AddAlternatives({{Cause::kBosDoubled, 0.55}, {Cause::kBosMissing, 0.4}}, evidence, decisions);
  }
}

bool Diagnostician::BeginTwice() const {
  size_t twice = 0;
  for (const Comparison& c : e_.comparisons) twice += c.first_token_twice;
  return twice * 2 > e_.comparisons.size();
}

bool Diagnostician::TokensAreTheEngines() const {
  size_t engines = 0;
  for (const Comparison& c : e_.comparisons) engines += IsOfEngine(c.tokenizer);
  return engines * 2 > e_.comparisons.size();
}

// The remedy of a cause about text depends on what makes the tokens now.
std::string Diagnostician::RemedyFor(Cause cause) const {
  if (cause != Cause::kTokenizer && cause != Cause::kChatTemplate && cause != Cause::kPromptDiffers)
    return "";
  if (TokensAreTheEngines()) {
    return "The engine's own /tokenize makes the tokens, and its chat reads such requests in "
           "another "
           "way: let its render endpoints make them, where it has some (--tokenize=render), or the "
           "model's files (--tokenize=local).";
  }
  const bool are_local = std::any_of(e_.comparisons.begin(), e_.comparisons.end(),
                                     [](const Comparison& c) { return !c.tokenizer.empty(); });
  if (!are_local || cause == Cause::kTokenizer) return "";
  return std::string(
             cause == Cause::kChatTemplate
                 ? CauseRemedy(cause)
                 : "The model's files here do not make of such requests what its chat does.") +
         " Or let the engine make the tokens (--tokenize=engine).";
}

// Prompts are in the index up to at most half of them, and their lengths differ: the heads agree,
// and behind them ours and the engine's prompts part.
void Diagnostician::Diverging() {
  const Lengths lengths = LengthsOf(e_);
  if (!lengths.differ()) return;
  Checks at_head;
  size_t whole = 0;
  for (const Check& check : e_.checks) {
    whole += check.whole();
    if (!check.whole() && check.held * 2 <= check.asked) at_head.push_back(&check);
  }
  if (at_head.size() < kConfirmedMin || at_head.size() < 4 * whole) return;
  const Lengths plain = LengthsOf(e_, OfForm(PromptForm::kCompletion));
  Evidence evidence = {Share(at_head.size(), at_head.size() + whole, "prompts that it finished") +
                       " are in the index up to block " + Number(at_head.back()->held) +
                       " or so alone"};
  NameText(lengths, plain.compared == 0, std::move(evidence), DecisionsOf(at_head));
}

}  // namespace kvatlas
