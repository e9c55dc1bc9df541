// Writes a page of the manual in roff: headings, paragraphs and items, as man(7) describes them.
//
// *Truth*: text is text: whatever is in it, a period at its start or a backslash, is printed as it
// is. `groff -ww` has no complaint.
// *Threads*: none.

#ifndef KVATLAS_INDEXER_PROCESS_ROFF_H_
#define KVATLAS_INDEXER_PROCESS_ROFF_H_

#include <string>
#include <string_view>
#include <vector>

namespace kvatlas {

class RoffPage {
 public:
  RoffPage(std::string_view name, int section);

  // The first section: `name \- about`.
  void Name(std::string_view about);
  void Heading(std::string_view text);
  void Subheading(std::string_view text);
  void Paragraph(std::string_view text);
  void Usage(std::string_view program, std::string_view arguments);
  // "--flag VALUE", and what it is.
  void Item(std::string_view what, std::string_view value, std::string_view text);
  // A command line, behind what it does.
  void Example(std::string_view command, std::string_view does);
  // Other pages, as "kvatlas-leaf(8)".
  void SeeAlso(const std::vector<std::string>& pages);

  const std::string& Text() const { return text_; }

 private:
  const std::string name_;
  std::string text_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_ROFF_H_
