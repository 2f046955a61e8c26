package pages

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"image/png"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/relay"
)

// documentType is the content type of the relay information document. A request that accepts it
// asks for the document.
const documentType = "application/nostr+json"

// document makes the relay information document (NIP-11, with GRASP-01's additions). owner is the
// operator's public key, 64 hex digits; icon is a URL.
func document(s config.Settings, limits relay.Limits, owner, icon string) map[string]any {
	defaultLimit, maxLimit := limits.FilterLimits()
	d := map[string]any{
		"name": s.DisplayName(), "description": s.RelayDescription, "icon": icon,
		// Clients compare either with the key of a CI coordinator.
		"pubkey": owner, "self": owner,
		"supported_nips":           nips(s),
		"supported_grasps":         grasps(s),
		"repo_acceptance_criteria": criteria(s),
		"software":                 "https://tendril.dev",
		"version":                  obs.Version(),
		"limitation": map[string]any{
			"max_message_length":     limits.MaxMessageBytes,
			"max_subscriptions":      limits.MaxSubscriptions,
			"max_limit":              maxLimit,
			"default_limit":          defaultLimit,
			"max_subid_length":       relay.MaxSubscriptionID,
			"max_event_tags":         relay.MaxEventTags,
			"created_at_upper_limit": proto.MaxFuture,
			// NIP-11 means clients that may do nothing at all before.
			"auth_required":    s.PrivateMode || s.AuthToRead() && s.AuthToWrite(),
			"payment_required": false,
			// Events must concern a repository that is hosted here.
			"restricted_writes": true,

			// NIP-11 has no names for these. An IP is an IPv4 address or the /64 of an IPv6 address.
			"max_filters":                        limits.MaxFilters,
			"max_filter_values":                  limits.MaxFilterValues,
			"max_filter_steps":                   limits.MaxFilterSteps, // looked at in the index
			"max_connections":                    limits.MaxConnections,
			"max_connections_per_ip":             limits.MaxConnectionsPerIP,
			"max_http_connections_per_ip":        limits.MaxConnectionsPerIP + limits.OtherConnectionsPerIP, // of any kind
			"max_reconciled_events":              limits.MaxReconciledEvents,
			"max_events_per_minute":              limits.EventsPerMinute, // from one connection
			"max_events_per_minute_per_ip":       limits.EventsPerMinutePerIP,
			"max_open_filters_per_ip":            limits.MaxOpenFiltersPerIP, // of subscriptions, and sessions of NIP-77
			"max_kept_bytes_per_ip":              limits.ClientBytesPerIP,    // of these, and events that wait
			"max_git_requests_per_ip":            limits.GitRequestsPerIP,    // at once
			"max_git_requests_per_minute_per_ip": limits.GitRequestsPerMinute,
			"max_push_bytes":                     s.MaxPushBytes, // of one push
			"max_event_bytes":                    s.LargestEvent, // of a kind without a bound of its own
		},
	}
	for name, text := range map[string]string{
		"curation": curation(s), "contact": s.RelayContact, "terms_of_service": s.RelayTerms, "banner": s.RelayBanner,
	} {
		if text != "" {
			d[name] = text
		}
	}
	return d
}

// nips are the NIPs that the settings leave on, in order.
func nips(s config.Settings) []int {
	return slices.DeleteFunc([]int{1, 5, 9, 11, 34, 40, 42, 45, 56, 62, 70, 77, 86, 98}, func(nip int) bool {
		return nip == 5 && !hasName(s) || (nip == 9 || nip == 62) && s.IgnoreDeletions
	})
}

// grasps are the parts of GRASP that the settings turn on.
func grasps(s config.Settings) []string {
	all := []string{"GRASP-01", "GRASP-02"}
	if plus, err := s.Plus(); err == nil && !plus.Off {
		all = append(all, "GRASP-03")
	}
	if s.Archives() {
		all = append(all, "GRASP-05")
	}
	if s.ContributorPRs {
		all = append(all, "GRASP-06")
	}
	if s.PrivateMode {
		all = append(all, "GRASP-08")
	}
	return all
}

// criteria says in a sentence which repositories are hosted. Clients read it by words: that of an
// open service begins with "Anyone may" and has none of whitelist, allowlist, invite, approval,
// curated and selected; that of a restricted one says whitelist.
func criteria(s config.Settings) string {
	who := "Anyone may host a repository here"
	if len(s.RepositoryWhitelist) > 0 {
		who = "Repositories on the operator's whitelist are hosted here"
	}
	if s.PrivateMode {
		who = "Members alone host and read repositories here: the operator keeps a whitelist of their keys"
	}
	within := s.HoldDuration.String()
	if s.HoldDuration%time.Minute == 0 {
		within = fmt.Sprintf("%d minutes", s.HoldDuration/time.Minute)
	}
	return fmt.Sprintf("%s: the announcement names %s in its clone and relays tags, and git data arrives within %s. "+
		"The operator may exclude repositories and authors.", who, s.Address(), within)
}

// curation says how the operator's lists narrow or widen what is kept; empty without such lists.
// Lists of excluded authors and repositories are no curation: every relay keeps spam out.
func curation(s config.Settings) string {
	var rules []string
	if len(s.RepositoryWhitelist) > 0 {
		rules = append(rules, "Only repositories on the operator's whitelist are hosted.")
	}
	if sentence := archived(s); sentence != "" {
		rules = append(rules, sentence)
	}
	return strings.Join(rules, " ")
}

// archived says what is kept of repositories that do not list this service; nothing if none is.
func archived(s config.Settings) string {
	what := ""
	switch {
	case s.ArchiveAll:
		what = "All repositories"
	case len(s.ArchiveWhitelist) > 0:
		what = "Repositories on the operator's whitelist"
	case len(s.ArchiveServices) > 0:
		what = "Repositories that are hosted by " + strings.Join(s.ArchiveServices, ", ")
	default:
		return ""
	}
	if s.IsArchiveReadOnly() {
		return what + " are archived, read-only, though they do not list this service."
	}
	return what + " are archived, and can be pushed to, though they do not list this service."
}

// IconPath is where the icon is served.
const IconPath = "/icon.png"

//go:embed icon.png
var ownIcon []byte

// icon is the relay's icon (NGIT_RELAY_ICON): the URL that the document names, and what is served
// at IconPath; nil: it is elsewhere.
func icon(s config.Settings) (address string, body []byte, err error) {
	given, reason := s.RelayIcon, ""
	if strings.HasPrefix(given, "https://") || strings.HasPrefix(given, "http://") {
		if u, err := url.Parse(given); err == nil && u.Host != "" {
			return given, nil, nil
		}
		reason = "it is not a URL"
	} else if given == "" {
		body = ownIcon
	} else if body, err = os.ReadFile(given); err != nil {
		reason = fmt.Sprintf("it cannot be read (%v)", errors.Unwrap(err))
	} else if _, err := png.DecodeConfig(bytes.NewReader(body)); err != nil {
		reason = "it is no PNG"
	}
	if reason != "" {
		return "", nil, &config.Error{Setting: "NGIT_RELAY_ICON", Value: given,
			Reason: reason + "; want a PNG file, or a URL like https://example.com/icon.png"}
	}
	return s.URL("http") + IconPath, body, nil
}
