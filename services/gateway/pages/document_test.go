package pages

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip11"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/services/gateway/relay"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

func settings(t *testing.T, args ...string) config.Settings {
	t.Helper()
	s, err := config.Process().Parse(append([]string{"--domain=git.example.com", "--relay-data-path=" + t.TempDir()}, args...))
	must(t, err)
	return s
}

func TestDocument(t *testing.T) {
	t.Parallel()
	s := settings(t, "--relay-name=Example", "--relay-filter-limit=777", "--relay-contact=mailto:a@example.com",
		"--relay-banner=https://example.com/b.png", "--relay-terms-of-service=https://example.com/terms")
	body, err := json.Marshal(document(s, relay.Limits{Front: s.Front, Bounds: relay.DefaultBounds}, strings.Repeat("a", 64), "https://git.example.com/icon.png"))
	must(t, err)
	var read nip11.RelayInformationDocument
	if err := json.Unmarshal(body, &read); err != nil {
		t.Fatalf("a nostr client cannot read it: %v", err)
	}
	if read.Name != "Example" || read.PubKey != strings.Repeat("a", 64) || read.Limitation.MaxLimit != 777 || read.Version == "" {
		t.Errorf("document: %s", body)
	}
	var raw map[string]any
	must(t, json.Unmarshal(body, &raw))
	for name, want := range map[string]string{
		"curation": "null", "supported_nips": "[1,5,9,11,34,40,42,45,56,62,70,77,86,98]", "supported_grasps": `["GRASP-01","GRASP-02","GRASP-03"]`,
		"self": `"` + strings.Repeat("a", 64) + `"`, "contact": `"mailto:a@example.com"`, "banner": `"https://example.com/b.png"`,
		"terms_of_service": `"https://example.com/terms"`,
	} {
		if got, _ := json.Marshal(raw[name]); string(got) != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	limitation := raw["limitation"].(map[string]any)
	for _, c := range fixture.Rows(`
		max_message_length     | 1048576
		max_subscriptions      | 500
		max_subid_length       | 250
		max_filters            | 20
		max_filter_values      | 8192
		max_limit              | 777
		default_limit          | 777
		max_event_bytes        | 196608
		max_events_per_minute  | 60
		created_at_upper_limit | 900`) {
		if got := fmt.Sprintf("%.0f", limitation[c[0]]); got != c[1] {
			t.Errorf("%s is %s, want %s", c[0], got, c[1])
		}
	}
	for limit := range strings.FieldsSeq(`max_connections max_connections_per_ip max_event_tags max_http_connections_per_ip
		max_events_per_minute_per_ip max_open_filters_per_ip max_reconciled_events max_git_requests_per_ip
		max_git_requests_per_minute_per_ip max_push_bytes max_kept_bytes_per_ip`) {
		if n, _ := limitation[limit].(float64); n <= 0 {
			t.Errorf("%s is %v", limit, n)
		}
	}
}

// TestWordsFollowTheSettings: the name, and what is hosted, kept and excluded.
func TestWordsFollowTheSettings(t *testing.T) {
	t.Parallel()
	npub, err := nip19.EncodePublicKey(strings.Repeat("a", 64))
	must(t, err)
	words := strings.NewReplacer("NPUB", npub,
		"ANY", "Anyone may host a repository here: NAMED 30 minutes", "LISTED", "Repositories on the operator's whitelist are hosted here: NAMED",
		"MEMBERS", "Members alone host and read repositories here: the operator keeps a whitelist of their keys: NAMED",
		"ONLY", "Only repositories on the operator's whitelist are hosted.", "THOUGH", "though they do not list this service.")
	for _, c := range fixture.Rows(`
		--sync-plus-enabled=false                                             | ANY | | GRASP-01,GRASP-02
		--relay-name=Mine                                                     | ANY | | GRASP-01,GRASP-02,GRASP-03
		--repository-whitelist=x --purgatory-hold=90s                         | LISTED 1m30s | ONLY | GRASP-01,GRASP-02,GRASP-03
		--repository-blacklist=x                                              | ANY | | GRASP-01,GRASP-02,GRASP-03
		--event-blacklist=NPUB                                                | ANY | | GRASP-01,GRASP-02,GRASP-03
		--event-blacklist=NPUB --repository-whitelist=x                       | LISTED 30 minutes | ONLY | GRASP-01,GRASP-02,GRASP-03
		--archive-all                                                         | ANY | All repositories are archived, read-only, THOUGH | GRASP-01,GRASP-02,GRASP-03,GRASP-05
		--archive-whitelist=tree --archive-read-only=false                    | ANY | Repositories on the operator's whitelist are archived, and can be pushed to, THOUGH | GRASP-01,GRASP-02,GRASP-03,GRASP-05
		--archive-grasp-services=a.example,b.example --repository-blacklist=x | ANY | Repositories that are hosted by a.example, b.example are archived, read-only, THOUGH | GRASP-01,GRASP-02,GRASP-03,GRASP-05
		--grasp06-enable                                                      | ANY | | GRASP-01,GRASP-02,GRASP-03,GRASP-06
		--private-mode --private-members=NPUB                                 | MEMBERS 30 minutes | | GRASP-01,GRASP-02,GRASP-08`) {
		for i, text := range c {
			c[i] = words.Replace(text)
		}
		c[1] = strings.ReplaceAll(c[1], "NAMED", "the announcement names git.example.com in its clone and relays tags, and git data arrives within") +
			". The operator may exclude repositories and authors."
		d := document(settings(t, strings.Fields(c[0])...), relay.Limits{}, "", "")
		curation, _ := d["curation"].(string)
		grasps := strings.Join(d["supported_grasps"].([]string), ",")
		if d["repo_acceptance_criteria"] != c[1] || curation != c[2] || grasps != c[3] {
			t.Errorf("%s:\n%s\n%s\n%s", c[0], d["repo_acceptance_criteria"], curation, grasps)
		}
		for _, word := range strings.Fields("whitelist allowlist invite approval curated selected") {
			if strings.HasPrefix(c[1], "Anyone may ") && strings.Contains(strings.ToLower(fmt.Sprint(d["repo_acceptance_criteria"])), word) {
				t.Errorf("%s: an open service says %q, and clients take it for a restricted one", c[0], word)
			}
		}
		if name := "git.example.com grasp relay"; d["name"] != name && (d["name"] != "Mine" || c[0] != "--relay-name=Mine") {
			t.Errorf("%s: name %s", c[0], d["name"])
		}
	}
}

// TestNIPsFollowTheSettings: the document promises no NIP that is off.
func TestNIPsFollowTheSettings(t *testing.T) {
	t.Parallel()
	if got := fmt.Sprint(document(settings(t, "--domain=127.0.0.1:7334"), relay.Limits{}, "", "")["supported_nips"]); strings.Contains(got, " 5 ") {
		t.Errorf("NIP-05 at an IP address: %s", got)
	}
	d := document(settings(t, "--deletion-request-disrespector"), relay.Limits{}, "", "")
	if got := fmt.Sprint(d["supported_nips"]); got != "[1 5 11 34 40 42 45 56 70 77 86 98]" {
		t.Errorf("supported_nips: %s", got)
	}
}

func TestWanted(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"application/nostr+json":                  true,
		"text/html, Application/Nostr+JSON;q=0.9": true,
		"text/html,*/*":                           false,
		"application/nostr+jsonx":                 false,
		"":                                        false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept", accept)
		if WantsDocument(r) != want {
			t.Errorf("%q: %v", accept, !want)
		}
	}
}

func TestIcon(t *testing.T) {
	t.Parallel()
	write := func(body []byte) string {
		path := filepath.Join(t.TempDir(), "icon")
		must(t, os.WriteFile(path, body, 0o600))
		return path
	}
	for name, c := range map[string]struct{ given, url, problem string }{
		"none":       {"", "https://git.example.com/icon.png", ""},
		"a file":     {write(ownIcon), "https://git.example.com/icon.png", ""},
		"a URL":      {"https://cdn.example/x.svg", "https://cdn.example/x.svg", ""},
		"half a URL": {"https://", "", "it is not a URL"},
		"no file":    {filepath.Join(t.TempDir(), "none"), "", "it cannot be read"},
		"no PNG":     {write([]byte("GIF89a")), "", "it is no PNG"},
	} {
		url, _, err := icon(settings(t, "--relay-icon="+c.given))
		if url != c.url || (err == nil) != (c.problem == "") || err != nil && (!strings.HasPrefix(err.Error(), "NGIT_RELAY_ICON is ") || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%s: %s, %v", name, url, err)
		}
	}
	if url, _, err := icon(settings(t, "--domain=localhost:7334")); err != nil || url != "http://localhost:7334/icon.png" {
		t.Errorf("without TLS: %s, %v", url, err)
	}
}
