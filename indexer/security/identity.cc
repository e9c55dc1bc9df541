// Identities as text and as SPIFFE IDs, and what a certificate contains. OpenSSL's queue of errors
// is emptied after each failure, so that it does not appear at the next user of the thread.

#include "indexer/security/identity.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/security/x509_text.h"

namespace kvatlas {
namespace {

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

// How a role is written: its name, and how many names follow it in the text form.
struct RoleForm {
  IdentityRole role;
  std::string_view name;
  size_t names;  // segments after the role
};

constexpr std::array kRoles = {
    RoleForm{IdentityRole::kAnonymous, "anonymous", 0},
    RoleForm{IdentityRole::kWorker, "worker", 2},
    RoleForm{IdentityRole::kLeaf, "leaf", 2},
    RoleForm{IdentityRole::kNode, "node", 1},
    RoleForm{IdentityRole::kFrontend, "frontend", 1},
    RoleForm{IdentityRole::kGateway, "gateway", 1},
    RoleForm{IdentityRole::kOperator, "operator", 1},
    RoleForm{IdentityRole::kViewer, "viewer", 1},
};

// Payloads of a refusal's status: they carry the reason to the audit log, and are not sent to the
// peer.
constexpr absl::string_view kIdentityPayload = "kvatlas.identity";
constexpr absl::string_view kReasonPayload = "kvatlas.reason";

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;

std::string HexOf(const unsigned char* bytes, size_t size) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes), size));
}

std::string TextOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

// In lower case without leading zeros, as policies' "serial:" are brought into form.
std::string SerialOf(const X509* certificate) {
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr), BN_free);
  if (number == nullptr) return "";
  char* const hex = BN_bn2hex(number.get());
  std::string serial = absl::AsciiStrToLower(hex == nullptr ? "" : hex);
  OPENSSL_free(hex);
  const size_t first = serial.find_first_not_of('0');
  return first == std::string::npos ? "0" : serial.substr(first);
}

// The first common name; empty: none.
std::string CommonNameOf(const X509* certificate) {
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return "";
  return TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
}

// Empty for a length that is neither of the two families.
std::string AddressOf(const ASN1_OCTET_STRING* bytes) {
  char text[INET6_ADDRSTRLEN] = {};
  const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(bytes) != 16) return "";
  inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof(text));
  return text;
}

// URIs, DNS names and addresses, in their order; other kinds of names are of no use here.
void ReadAlternativeNames(const X509* certificate, CertificateNames* names) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> all(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  if (all == nullptr) return;
  for (int i = 0; i < sk_GENERAL_NAME_num(all.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(all.get(), i);
    if (name->type == GEN_URI) names->uris.push_back(TextOf(name->d.uniformResourceIdentifier));
    if (name->type == GEN_DNS) names->dns.push_back(TextOf(name->d.dNSName));
    if (name->type == GEN_IPADD) names->ips.push_back(AddressOf(name->d.iPAddress));
  }
}

// A segment may not contain '/' or '*': it could be taken for two segments, or for a pattern.
absl::Status CheckSegment(std::string_view segment, std::string_view of) {
  constexpr std::string_view kMore = "-_.:@+~=";
  for (const char c : segment) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || kMore.find(c) != kMore.npos) continue;
    return absl::InvalidArgumentError(absl::StrCat("identity \"", absl::CHexEscape(Absl(of)),
                                                   "\": names consist of letters, digits and ",
                                                   Absl(kMore)));
  }
  if (!segment.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("identity \"", Absl(of), "\": a name is empty"));
}

}  // namespace

std::string_view RoleName(IdentityRole role) {
  for (const RoleForm& form : kRoles) {
    if (form.role == role) return form.name;
  }
  return "anonymous";
}

// ParseIdentity reads it back, except tenant and credential.
std::string Identity::Text() const {
  const std::string_view role_name = RoleName(role);
  std::string text(role_name);
  if (role == IdentityRole::kWorker || role == IdentityRole::kLeaf)
    absl::StrAppend(&text, "/", cell);
  if (role != IdentityRole::kAnonymous) absl::StrAppend(&text, "/", name);
  return text;
}

// By role: the number of segments must be the role's. A cell stands before the name where there are
// two.
absl::StatusOr<Identity> ParseIdentity(std::string_view text) {
  const std::vector<std::string> segments = absl::StrSplit(Absl(text), '/');
  for (const RoleForm& form : kRoles) {
    if (segments.front() != form.name) continue;
    if (segments.size() != form.names + 1) break;
    for (const std::string& segment : segments) {
      if (absl::Status bad = CheckSegment(segment, text); !bad.ok()) return bad;
    }
    Identity identity;
    identity.role = form.role;
    if (form.names == 2) identity.cell = segments[1];
    if (form.names > 0) identity.name = segments.back();
    return identity;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "identity \"", absl::CHexEscape(Absl(text)),
      "\": expected worker/CELL/NAME, leaf/CELL/REPLICA, node/NAME, frontend/NAME, gateway/NAME, "
      "operator/NAME, viewer/NAME or anonymous"));
}

// All refusals have one text, so that a caller cannot probe which tokens or names exist.
absl::Status CredentialRefused(absl::string_view reason, const Identity* of) {
  absl::Status refused = absl::UnauthenticatedError(
      "a client certificate or a bearer token that counts here is needed; the audit log of the "
      "server says why");
  // By way of a view: clang and Debian's Abseil name the Cord constructor for strings differently.
  if (of != nullptr)
    refused.SetPayload(kIdentityPayload, absl::Cord(absl::string_view(of->Text())));
  refused.SetPayload(kReasonPayload, absl::Cord(reason));
  return refused;
}

CredentialRefusal WhyRefused(const absl::Status& refused) {
  const absl::optional<absl::Cord> identity = refused.GetPayload(kIdentityPayload);
  const absl::optional<absl::Cord> reason = refused.GetPayload(kReasonPayload);
  return {.identity = identity.has_value() ? std::string(*identity) : "",
          .reason = reason.has_value() ? std::string(*reason) : std::string(refused.message())};
}

// Reads the first certificate alone, without verifying anything.
absl::StatusOr<CertificateNames> ReadCertificate(std::string_view pem) {
  const BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const X509Ptr certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free);
  ERR_clear_error();
  if (certificate == nullptr) {
    return absl::InvalidArgumentError("expected a certificate in PEM form, found none");
  }
  CertificateNames names;
  ReadAlternativeNames(certificate.get(), &names);
  names.common_name = CommonNameOf(certificate.get());
  names.serial = SerialOf(certificate.get());
  names.not_before_unix_s = UnixSeconds(X509_get0_notBefore(certificate.get()));
  names.not_after_unix_s = UnixSeconds(X509_get0_notAfter(certificate.get()));
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (X509_digest(certificate.get(), EVP_sha256(), digest, &size) == 1) {
    names.sha256 = HexOf(digest, size);
  }
  return names;
}

// The prefix includes the '/' after the trust domain, so "example.org.evil" does not pass for
// "example.org".
absl::StatusOr<Identity> ParseSpiffeId(std::string_view uri, std::string_view trust_domain) {
  const std::string prefix = absl::StrCat("spiffe://", Absl(trust_domain), "/kvatlas/");
  if (!uri.starts_with(prefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(Absl(uri)), "\": expected ", prefix, "ROLE/NAME"));
  }
  absl::StatusOr<Identity> identity = ParseIdentity(uri.substr(prefix.size()));
  if (identity.ok() && identity->role == IdentityRole::kAnonymous) {
    return absl::InvalidArgumentError("a certificate cannot be of \"anonymous\"");
  }
  return identity;
}

}  // namespace kvatlas
