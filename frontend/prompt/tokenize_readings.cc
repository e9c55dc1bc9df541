// From the conventions of a model's engines to the readings of a prompt. `TokenizeReadings` asks
// the tokenizer once for each convention, `Gathered` collects the answers, `Take` groups equal ones
// and writes them into the input: reading 0 into the input itself, the others into
// `other_readings`.

#include "frontend/prompt/tokenize_readings.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

using Callback = std::function<void(absl::StatusOr<std::vector<ReadingTold>>)>;
using Answer = absl::StatusOr<PromptTokens>;

// An empty prompt has no blocks to look for: it counts as one without tokens.
Answer NotEmpty(Answer tokens) {
  if (tokens.ok() && tokens->tokens.empty()) return absl::InvalidArgumentError("no tokens");
  return tokens;
}

// The prompt as an engine of this convention gets it. The body is shared, not copied.
std::shared_ptr<const Prompt> As(const std::shared_ptr<const Prompt>& prompt,
                                 const Convention& convention) {
  const auto* const body = std::get_if<BodyPrompt>(prompt.get());
  if (body == nullptr || body->convention == convention) return prompt;
  BodyPrompt other = *body;
  other.convention = convention;
  return std::make_shared<const Prompt>(std::move(other));
}

// Not OK: the tokens are the beginning of the prompt alone, and why.
absl::Status OfBeginning(const PromptTokens& tokens) {
  return tokens.ends_before.empty() ? absl::OkStatus()
                                    : absl::UnimplementedError(tokens.ends_before);
}

// Writes reading 0.
void TakeOwn(PromptTokens tokens, RouteInput* input, ReadingTold* told) {
  told->tokenizer = input->tokenizer = std::move(tokens.source);
  told->prompt_tokens = tokens.tokens.size();
  told->no_tokens = OfBeginning(tokens);
  input->is_beginning = !tokens.ends_before.empty();
  input->bos = tokens.bos;
  input->tokens = std::move(tokens.tokens);
  input->items = std::move(tokens.items);
}

// Groups the answers, one for each convention in their order, into readings.
//
// 1. All answers are errors: the first one's is the result.
// 2. Conventions with equal tokens share a reading. Answers with tokens come first, so reading 0
//    always has tokens. Answers without tokens are never grouped: each has its own reason.
// 3. The name of a reading lists its conventions; `reading_of` finds the reading of an engine by
//    its url. It is set only where there is more than one reading.
//
// `reading_of[i]`: the reading of convention i. `readings[r]`: the first convention of reading r.
// Cost: a comparison of tokens for each pair of conventions, of which a model has few.
absl::StatusOr<std::vector<ReadingTold>> Take(const ModelConventions::Ptr& conventions,
                                              std::vector<Answer> answers, RouteInput* input) {
  const bool any =
      std::any_of(answers.begin(), answers.end(), [](const Answer& answer) { return answer.ok(); });
  if (!any) return answers[0].status();
  std::vector<size_t> reading_of(answers.size());
  std::vector<size_t> readings;
  for (const bool with_tokens : {true, false}) {
    for (size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].ok() != with_tokens) continue;
      const auto same = std::find_if(readings.begin(), readings.end(), [&](size_t other) {
        return with_tokens && answers[other]->tokens == answers[i]->tokens &&
               answers[other]->items == answers[i]->items &&
               answers[other]->ends_before.empty() == answers[i]->ends_before.empty();
      });
      reading_of[i] = same - readings.begin();
      if (same == readings.end()) readings.push_back(i);
    }
  }
  std::vector<ReadingTold> told(readings.size());
  input->other_readings.resize(readings.size() - 1);
  for (size_t i = 0; i < answers.size(); ++i) {
    const size_t reading = reading_of[i];
    std::string& name = reading == 0 ? input->reading : input->other_readings[reading - 1].name;
    absl::StrAppend(&name, name.empty() ? "" : ", ", ToString(conventions->conventions[i]));
  }
  for (size_t reading = 0; reading < readings.size(); ++reading) {
    Answer& answer = answers[readings[reading]];
    if (!answer.ok()) {
      told[reading].no_tokens = answer.status();
      input->other_readings[reading - 1].no_tokens = std::string(answer.status().message());
    } else if (reading == 0) {
      TakeOwn(*std::move(answer), input, &told[reading]);
    } else {
      told[reading].tokenizer = answer->source;
      input->other_readings[reading - 1].tokenizer = std::move(answer->source);
      told[reading].prompt_tokens = answer->tokens.size();
      told[reading].no_tokens = OfBeginning(*answer);
      input->other_readings[reading - 1].is_beginning = !answer->ends_before.empty();
      input->other_readings[reading - 1].tokens = std::move(answer->tokens);
      input->other_readings[reading - 1].items = std::move(answer->items);
    }
  }
  if (readings.size() > 1) {
    input->reading_of = [conventions, reading_of = std::move(reading_of)](const std::string& url) {
      return reading_of[conventions->Of(url)];
    };
  }
  return told;
}

// Answers to the same prompt, by convention. Callbacks may come on several threads at once; the one
// that brings `pending` to 0 takes the answers and continues, without the lock.
struct Gathered {
  Mutex mutex;
  std::vector<Answer> answers ABSL_GUARDED_BY(mutex);
  size_t pending ABSL_GUARDED_BY(mutex) = 0;
};

}  // namespace

// A model whose engines have one convention, and a prompt that is no body, need one question and no
// gathering. Otherwise `pending` is set before the first question: a tokenizer may answer before
// `ask` returns.
void TokenizeReadings(const ModelConventions::Ptr& conventions,
                      const std::shared_ptr<const Prompt>& prompt, RouteInput* input,
                      const AskTokens& ask, Callback callback) {
  const bool has_conventions =
      conventions != nullptr && std::holds_alternative<BodyPrompt>(*prompt);
  const size_t count = has_conventions ? conventions->conventions.size() : 1;
  if (count == 1) {
    if (has_conventions) input->reading = ToString(conventions->conventions[0]);
    return ask(has_conventions ? As(prompt, conventions->conventions[0]) : prompt,
               [input, callback = std::move(callback)](Answer tokens) {
                 tokens = NotEmpty(std::move(tokens));
                 if (!tokens.ok()) return callback(tokens.status());
                 std::vector<ReadingTold> told(1);
                 TakeOwn(*std::move(tokens), input, told.data());
                 callback(std::move(told));
               });
  }
  auto gathered = std::make_shared<Gathered>();
  {
    MutexLock lock(&gathered->mutex);
    gathered->answers.resize(count, absl::UnknownError("not answered"));
    gathered->pending = count;
  }
  for (size_t i = 0; i < count; ++i) {
    ask(As(prompt, conventions->conventions[i]),
        [conventions, input, gathered, i, callback](Answer tokens) {
          std::vector<Answer> answers;
          {
            MutexLock lock(&gathered->mutex);
            gathered->answers[i] = NotEmpty(std::move(tokens));
            if (--gathered->pending > 0) return;
            answers.swap(gathered->answers);
          }
          callback(Take(conventions, std::move(answers), input));
        });
  }
}

// Hashes the prompt early (`Frontend::Prepare`) only where it has more tokens than
// `kRouteBlocksMax`: a block has at least one token, so a shorter prompt never has too many blocks.
// RESOURCE_EXHAUSTED: the tokens of all readings are dropped and the prompt counts as unknown.
// Other errors are left to the route, which meets them again.
absl::Status ForgetTokensBeyondBlocksMax(Frontend* frontend, RouteInput* input) {
  size_t longest = input->tokens.size();
  for (const Reading& other : input->other_readings)
    longest = std::max(longest, other.tokens.size());
  if (longest <= kRouteBlocksMax) return absl::OkStatus();
  absl::Status hashed = frontend->Prepare(input);
  if (!absl::IsResourceExhausted(hashed)) return absl::OkStatus();
  input->no_tokens = std::string(hashed.message());
  input->tokens.clear();
  input->other_readings.clear();
  input->prepared = nullptr;
  input->unknown_prompt = true;
  return hashed;
}

}  // namespace kvatlas
