// kvatlas-tokenize: the token ids of prompts, one JSON object a line in and one out.
//
//   kvatlas-tokenize --models qwen3=/models/qwen3 <<< '{"model": "qwen3", "prompt": "Hello"}'
//   kvatlas-tokenize --models qwen3=/models/qwen3 <<< '{"model": "qwen3", "messages": [{"role": "user", "content": "Hi"}]}'
//
// A line has a model and either a prompt or messages, as engines' /tokenize takes them: add_special_tokens, tools,
// add_generation_prompt, continue_final_message, chat_template_kwargs, chat_template. With "render" true a chat is answered with its text.
// An answer is {"tokens": […], "reused": 12, "source": "…", "us": 345}, {"text": "…"} or {"error": "…"}.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/text_model.h"
#include "indexer/base/clock.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

std::optional<bool> MaybeBool(const Json& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end() || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

Json Field(const Json& line, const char* name) {
  const auto found = line.find(name);
  return found == line.end() ? Json() : *found;
}

ChatPrompt ChatOf(const Json& line) {
  ChatPrompt chat;
  chat.messages = Field(line, "messages");
  chat.tools = Field(line, "tools");
  chat.template_kwargs = Field(line, "chat_template_kwargs");
  chat.add_generation_prompt = MaybeBool(line, "add_generation_prompt").value_or(true);
  chat.continue_final_message = MaybeBool(line, "continue_final_message").value_or(false);
  chat.add_special_tokens = MaybeBool(line, "add_special_tokens");
  if (Field(line, "chat_template").is_string())
    chat.chat_template = line["chat_template"].get<std::string>();
  return chat;
}

Json Error(const absl::Status& status) { return {{"error", status.ToString()}}; }

Json Answer(const ModelRegistry& registry, const Json& line) {
  if (!line.is_object() || !Field(line, "model").is_string())
    return {{"error", "a line without model"}};
  const auto model = registry.Find(line["model"].get<std::string>());
  if (!model.ok()) return Error(model.status());
  const Time start = Clock::Real().Now();
  absl::StatusOr<PromptTokens> tokens;
  if (Field(line, "prompt").is_string()) {
    tokens =
        (*model)->Tokenize(TextPrompt{.text = line["prompt"].get<std::string>(),
                                      .add_special_tokens = MaybeBool(line, "add_special_tokens")});
  } else if (MaybeBool(line, "render").value_or(false)) {
    const absl::StatusOr<std::string> text = (*model)->Render(ChatOf(line));
    return text.ok() ? Json({{"text", *text}}) : Error(text.status());
  } else {
    tokens = (*model)->Tokenize(ChatOf(line));
  }
  const Time took = Clock::Real().Now() - start;
  if (!tokens.ok()) return Error(tokens.status());
  return {{"tokens", tokens->tokens},
          {"reused", tokens->reused},
          {"source", tokens->source},
          {"us", took.count() / 1000}};
}

int Main(int argc, char** argv) {
  CLI::App app("The token ids of prompts, one JSON object a line in and one out.");
  std::string models;
  bool describe = false;
  app.add_option("--models", models, "NAME=PATH,… or @FILE (frontend/prompt/text/model_registry.h)")
      ->required();
  app.add_flag("--describe", describe, "Print what was loaded, and stop");
  CLI11_PARSE(app, argc, argv);
  absl::StatusOr<std::vector<ModelOptions>> options = ParseModels(models);
  if (!options.ok()) {
    std::cerr << options.status().message() << "\n";
    return 2;
  }
  const auto registry = ModelRegistry::Create(*std::move(options));
  if (!registry.ok()) {
    std::cerr << registry.status().message() << "\n";
    return 1;
  }
  if (describe) {
    std::cout << (*registry)->Describe().dump(2) << "\n";
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const Json answer = Answer(**registry, Json::parse(line, nullptr, /*allow_exceptions=*/false));
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
