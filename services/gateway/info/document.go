// Package info is what the relay says about itself: the relay information document (NIP-11, with
// GRASP-01's additions).
package info

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/obs"
	"tendril.dev/services/gateway/message"
)

// ContentType of the document; a request that accepts it wants the document.
const ContentType = "application/nostr+json"

// Document is the relay information document.
type Document struct {
	Name                   string   `json:"name"`
	Description            string   `json:"description"`
	Icon                   string   `json:"icon"`
	PubKey                 string   `json:"pubkey"`
	SupportedNIPs          []int    `json:"supported_nips"`
	SupportedGrasps        []string `json:"supported_grasps"`
	RepoAcceptanceCriteria string   `json:"repo_acceptance_criteria"`
	// Curation is there only if the operator's lists say what is kept (GRASP-01, GRASP-05).
	Curation   string     `json:"curation,omitempty"`
	Software   string     `json:"software"`
	Version    string     `json:"version"`
	Limitation Limitation `json:"limitation"`
}

// Limitation names every limit of the front door. Those that NIP-11 has no name for come last.
type Limitation struct {
	MaxMessageLength    int64 `json:"max_message_length"`
	MaxSubscriptions    int   `json:"max_subscriptions"`
	MaxLimit            int   `json:"max_limit"`
	DefaultLimit        int   `json:"default_limit"`
	MaxSubidLength      int   `json:"max_subid_length"`
	MaxEventTags        int   `json:"max_event_tags"`
	CreatedAtUpperLimit int   `json:"created_at_upper_limit"`
	AuthRequired        bool  `json:"auth_required"`
	PaymentRequired     bool  `json:"payment_required"`
	RestrictedWrites    bool  `json:"restricted_writes"`

	MaxFilters             int `json:"max_filters"`
	MaxFilterValues        int `json:"max_filter_values"`
	MaxConnections         int `json:"max_connections"`
	MaxConnectionsPerIP    int `json:"max_connections_per_ip"`
	MaxWaitingLiveMessages int `json:"max_waiting_live_messages"`
	MaxFilterSteps         int `json:"max_filter_steps"` // looked at in the index for one filter
	MaxReconciledEvents    int `json:"max_reconciled_events"`

	// Per IP: of an IPv4 address or the /64 of an IPv6 address.
	MaxHTTPConnectionsPerIP int   `json:"max_http_connections_per_ip"` // of any kind
	MaxEventsPerMinutePerIP int   `json:"max_events_per_minute_per_ip"`
	MaxSubscriptionsPerIP   int   `json:"max_subscriptions_per_ip"` // and sessions of NIP-77
	MaxKeptBytesPerIP       int64 `json:"max_kept_bytes_per_ip"`    // of filters, sets of NIP-77 and live events that wait
	MaxGitRequestsPerIP     int   `json:"max_git_requests_per_ip"`  // at once
	MaxGitPerMinutePerIP    int   `json:"max_git_requests_per_minute_per_ip"`
	MaxPushBytesPerHour     int   `json:"max_push_bytes_per_hour_per_ip"`
	MaxPushBytes            int64 `json:"max_push_bytes"` // of one push
}

const software = "https://tendril.dev"

// New makes the document from the settings. owner is the operator's public key, 64 hex digits; icon
// is a URL.
func New(s config.Settings, owner, icon string) Document {
	return Document{
		Name: s.DisplayName(), Description: s.RelayDescription, Icon: icon, PubKey: owner,
		SupportedNIPs:          []int{1, 9, 11, 34, 40, 42, 45, 70, 77},
		SupportedGrasps:        grasps(s),
		RepoAcceptanceCriteria: criteria(s),
		Curation:               curation(s),
		Software:               software,
		Version:                obs.Version(),
		Limitation: Limitation{
			MaxMessageLength: s.MaxMessageBytes, MaxSubscriptions: s.MaxSubscriptions,
			MaxLimit: s.MaxLimit, DefaultLimit: s.DefaultLimit, MaxSubidLength: message.MaxSubscriptionID,
			MaxEventTags: message.MaxEventTags, CreatedAtUpperLimit: s.MaxFutureSeconds,
			// NIP-11 means clients that may do nothing at all before.
			AuthRequired: s.AuthToRead() && s.AuthToWrite(),
			// Events must concern a repository that is hosted here.
			RestrictedWrites: true,
			MaxFilters:       s.Front.MaxFilters, MaxFilterValues: s.MaxFilterValues,
			MaxConnections: s.MaxConnections, MaxConnectionsPerIP: s.MaxConnectionsPerIP, MaxWaitingLiveMessages: s.SendQueue,
			MaxFilterSteps:          s.MaxFilterSteps,
			MaxReconciledEvents:     s.MaxReconciledEvents,
			MaxHTTPConnectionsPerIP: s.MaxHTTPConnectionsPerIP, MaxEventsPerMinutePerIP: s.EventsPerMinutePerIP,
			MaxSubscriptionsPerIP: s.MaxSubscriptionsPerIP, MaxKeptBytesPerIP: s.ClientBytesPerIP,
			MaxGitRequestsPerIP: s.GitRequestsPerIP, MaxGitPerMinutePerIP: s.GitRequestsPerMinute,
			MaxPushBytesPerHour: s.PushBytesPerHour, MaxPushBytes: s.MaxPushBytes,
		},
	}
}

// grasps are the parts of GRASP that the settings turn on.
func grasps(s config.Settings) []string {
	all := []string{"GRASP-01", "GRASP-02"}
	if s.Archives() {
		all = append(all, "GRASP-05")
	}
	if s.ContributorPRs {
		all = append(all, "GRASP-06")
	}
	return all
}

// criteria says in a sentence which repositories are hosted.
func criteria(s config.Settings) string {
	who := "Any repository is hosted"
	if len(s.RepositoryWhitelist) > 0 {
		who = "Repositories that the operator has put on a list are hosted"
	}
	return fmt.Sprintf("%s whose announcement names %s in its clone and relays tags and whose git data arrives within %s%s.",
		who, s.Domain, minutes(s.HoldDuration), except(s))
}

func except(s config.Settings) string {
	if len(s.RepositoryBlacklist) > 0 || len(s.EventBlacklist) > 0 {
		return ", unless the operator has excluded it or its author"
	}
	return ""
}

// archived says what is kept of repositories that do not list this service; nothing if none is.
func archived(s config.Settings) string {
	what := ""
	switch {
	case s.ArchiveAll:
		what = "All repositories"
	case len(s.ArchiveWhitelist) > 0:
		what = "Repositories on a list of the operator's"
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

// curation says how the operator's lists restrict or widen what is kept; nothing if there are none.
func curation(s config.Settings) string {
	var rules []string
	if len(s.RepositoryWhitelist) > 0 {
		rules = append(rules, "Only repositories on a list of the operator's are hosted.")
	}
	if len(s.RepositoryBlacklist) > 0 {
		rules = append(rules, "Repositories that the operator has excluded are never hosted.")
	}
	if len(s.EventBlacklist) > 0 {
		rules = append(rules, "Nothing is kept that is signed by authors whom the operator has excluded.")
	}
	if sentence := archived(s); sentence != "" {
		rules = append(rules, sentence)
	}
	return strings.Join(rules, " ")
}

func minutes(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d minutes", d/time.Minute)
	}
	return d.String()
}

// Handler serves the document.
func Handler(d Document) (http.Handler, error) {
	body, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the relay information document: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		if r.Method != http.MethodHead {
			w.Write(body)
		}
	}), nil
}

// Wanted reports whether a request asks for the document.
func Wanted(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(accept, ",") {
			kind, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(kind), ContentType) {
				return true
			}
		}
	}
	return false
}
