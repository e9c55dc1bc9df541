// With threads, a queue between `Tokenize` and `Work`; without, `Tokenize` does the work itself.
// Callbacks run without the lock.

#include "frontend/prompt/text/local_tokenizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/rust_text.h"

namespace kvatlas {

LocalTokenizer::LocalTokenizer(ModelRegistry* registry, const LocalTokenizerOptions& options)
    : registry_(registry), options_(options) {
  for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Work(); });
}

// Jobs that run are finished first, then those that wait get their error in this thread.
LocalTokenizer::~LocalTokenizer() {
  std::deque<Job> left;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    left.swap(jobs_);
    woken_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
  for (Job& job : left) job.callback(absl::UnavailableError("the tokenizer stops"));
}

// The Rust library gives up when the limit of this thread is over (`RustWork`). SentencePiece does
// not; its texts are bounded instead.
absl::StatusOr<PromptTokens> LocalTokenizer::Now(const std::string& model, const Prompt& prompt,
                                                 Duration limit) const {
  const absl::StatusOr<std::shared_ptr<TextModel>> found = registry_->Find(model);
  if (!found.ok()) return found.status();
  const RustWork work(limit);
  absl::StatusOr<PromptTokens> tokens = (*found)->Tokenize(prompt);
  if (tokens.ok()) tokens->source = absl::StrCat(model, " (", tokens->source, ")");
  return tokens;
}

// The deadline counts from here, the wait included. The callback is called without the lock: it may
// call this again.
void LocalTokenizer::Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                              Callback callback) {
  if (threads_.empty()) return callback(Now(model, prompt, deadline));
  const Time until = options_.clock->Now() + deadline;
  bool is_full = false;
  {
    MutexLock lock(&mutex_);
    is_full = jobs_.size() >= options_.queue_max;
    if (!is_full) {
      jobs_.push_back({model, prompt, until, std::move(callback)});
      woken_.Signal();
    }
  }
  if (is_full) {
    callback(absl::ResourceExhaustedError(
        absl::StrCat(options_.queue_max, " prompts wait to be tokenized")));
  }
}

// One of the threads, until the destructor.
void LocalTokenizer::Work() {
  while (true) {
    Job job;
    {
      MutexLock lock(&mutex_);
      while (jobs_.empty() && !stopping_) woken_.Wait(&mutex_);
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const Duration left = job.until - options_.clock->Now();
    if (left <= Duration(0)) {
      job.callback(absl::DeadlineExceededError("the prompt waited too long to be tokenized"));
    } else {
      job.callback(Now(job.model, job.prompt, left));
    }
  }
}

}  // namespace kvatlas
