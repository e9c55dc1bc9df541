// Three steps that each wait for others: tokens, cells, leaves. It runs in a thread of the page's
// server, not on a route's path.

#include "frontend/ui/prompt_explainer.h"

#include <memory>

#include "absl/status/statusor.h"
#include "frontend/router/prepared_prompt.h"
#include "frontend/ui/gathered_answers.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

// A question for another's tenant or model is refused, also where the caller may explain others.
bool MayDump(const HttpRequest& request, const ExplainQuestion& question) {
  const std::shared_ptr<Security> security = Security::OfProcess();
  if (!security->enforces()) return true;
  PolicyTarget target;
  target.model = question.model;
  target.tenant = question.tenant;
  return security->Check(*request.identity, Verb::kDump, target, request.peer, "explain").ok();
}

}  // namespace

// The question is checked before anything is asked. A leaf that knows no worker of the model
// (NOT_FOUND) is left out silently; one that finds the prompt invalid speaks for all; other
// failures are named beside the answers.
HttpResponse PromptExplainer::Answer(const HttpRequest& request) const {
  absl::StatusOr<ExplainQuestion> question = ReadExplain(request.body);
  if (!question.ok()) return HttpError(question.status());
  if (!MayDump(request, *question)) return HttpError(403, kNotAllowed);
  if (absl::Status bad = MakeTokens(&*question); !bad.ok()) return HttpError(bad);
  ExplainAnswer answer;
  const std::vector<NamedCell> cells = CellsFor(*question, &answer.cells_known);
  answer.cells_asked = cells.size();
  const v1::ExplainRequest asked = ToRequest(*question);
  GatheredAnswers<v1::ExplainResponse> answers(cells.size());
  for (size_t i = 0; i < cells.size(); ++i)
    parts_.asker->Explain(cells[i].second, asked, kExplainDeadline, answers.Slot(i));
  std::vector<absl::StatusOr<v1::ExplainResponse>> said = answers.Wait();
  absl::Status refused;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (said[i].ok()) {
      answer.cells.emplace_back(cells[i].first, *std::move(said[i]));
    } else if (absl::IsInvalidArgument(said[i].status())) {
      refused = said[i].status();  // the prompt is at fault, not the cell
    } else if (!absl::IsNotFound(said[i].status())) {
      answer.failed.push_back("cell " + cells[i].first + ": " +
                              std::string(said[i].status().message()));
    }
  }
  if (answer.cells.empty() && !refused.ok()) return HttpError(refused);
  if (answer.cells.empty()) {
    return HttpError(404, answer.failed.empty() ? "no cell has workers of model " + question->model
                                                : "no leaf answered: " + answer.failed.front());
  }
  return {.body = ExplainJson(*question, answer)};
}

// Plain text, as a completion would have it: no chat template.
absl::Status PromptExplainer::MakeTokens(ExplainQuestion* question) const {
  if (!question->tokens.empty()) return absl::OkStatus();
  if (parts_.tokenizer == nullptr)
    return absl::InvalidArgumentError("no tokens are made of text here: give token ids");
  GatheredAnswers<PromptTokens> tokens(1);
  parts_.tokenizer->Tokenize(question->model, TextPrompt{.text = question->text}, kExplainDeadline,
                             tokens.Slot(0));
  absl::StatusOr<PromptTokens> made = std::move(tokens.Wait()[0]);
  if (!made.ok()) return made.status();
  question->tokens = std::move(made->tokens);
  return absl::OkStatus();
}

// All that are known and answer; of more than are asked, those that cover most of the prompt as far
// as the hierarchy says.
std::vector<PromptExplainer::NamedCell> PromptExplainer::CellsFor(const ExplainQuestion& question,
                                                                  size_t* known) const {
  std::vector<NamedCell> cells;
  for (const auto& [name, address] : parts_.watch->Leaves()) cells.emplace_back(name, address);
  *known = cells.size();
  if (cells.size() <= kExplainCellsMax) return cells;
  std::vector<NamedCell> covering = Covering(question);
  if (!covering.empty()) return covering;
  cells.resize(kExplainCellsMax);
  return cells;
}

// The cells that the first node of the top level, of those that answer, names as covering the
// prompt; empty: none answers, or it names nodes alone. Nodes are asked at once.
std::vector<PromptExplainer::NamedCell> PromptExplainer::Covering(
    const ExplainQuestion& question) const {
  RouteInput input;
  input.domain = {question.model, question.tenant};
  input.tokens = question.tokens;
  input.lora_name = question.lora_name;
  input.cache_salt = question.cache_salt;
  if (!parts_.frontend->Prepare(&input).ok()) return {};
  const CellQuestion asked{.domain = &input.domain,
                           .waypoints = input.prepared->waypoints(),
                           .blocks = input.prepared->blocks(),
                           .best = kExplainCellsMax,
                           .schedule = parts_.frontend->options().schedule};
  std::vector<std::string> nodes = parts_.frontend->hierarchies().Addresses();
  if (nodes.size() > kExplainNodesMax) nodes.resize(kExplainNodesMax);
  GatheredAnswers<CellsAnswer> answers(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    parts_.cells->FindCells(nodes[i], asked, kExplainDeadline, answers.Slot(i));
  for (const absl::StatusOr<CellsAnswer>& found : answers.Wait()) {
    if (!found.ok()) continue;
    std::vector<NamedCell> cells;
    for (const CellFound& cell : found->cells)
      if (!cell.is_node && !cell.address.empty()) cells.emplace_back(cell.cell, cell.address);
    return cells;
  }
  return {};
}

}  // namespace kvatlas
