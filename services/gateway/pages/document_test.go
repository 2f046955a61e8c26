package pages

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"net/http/httptest"

	"github.com/nbd-wtf/go-nostr/nip11"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
)

func settings(t *testing.T, args ...string) config.Settings {
	t.Helper()
	s, err := config.Parse("gateway", append([]string{"--domain=git.example.com", "--relay-data-path=" + t.TempDir()}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDocument(t *testing.T) {
	t.Parallel()
	s := settings(t, "--relay-name=Example", "--max-limit=777")
	body, err := json.Marshal(document(s, strings.Repeat("a", 64), "https://git.example.com/icon.png"))
	if err != nil {
		t.Fatal(err)
	}
	var read nip11.RelayInformationDocument
	if err := json.Unmarshal(body, &read); err != nil {
		t.Fatalf("a nostr client cannot read it: %v", err)
	}
	if read.Name != "Example" || read.PubKey != strings.Repeat("a", 64) || read.Limitation.MaxLimit != 777 || read.Limitation.MaxSubidLength != 250 ||
		read.Limitation.MaxMessageLength != 524288 || read.Limitation.CreatedAtUpperLimit != 900 || read.Version == "" {
		t.Errorf("document: %s", body)
	}
	var raw map[string]any
	if err := json.Unmarshal(body, &raw); err != nil {
		t.Fatal(err)
	}
	if _, ok := raw["curation"]; ok {
		t.Error("curation is there, but nothing is curated")
	}
	if nips, _ := json.Marshal(raw["supported_nips"]); string(nips) != "[1,9,11,34,40,42,45,70,77]" {
		t.Errorf("supported_nips: %s", nips)
	}
	if grasps, _ := json.Marshal(raw["supported_grasps"]); string(grasps) != `["GRASP-01","GRASP-02"]` {
		t.Errorf("supported_grasps: %s", grasps)
	}
	for _, limit := range []string{"max_subscriptions", "default_limit", "max_filters", "max_filter_values", "max_connections", "max_connections_per_ip", "max_event_tags", "max_http_connections_per_ip", "max_events_per_minute_per_ip",
		"max_subscriptions_per_ip", "max_reconciled_events", "max_git_requests_per_ip", "max_git_requests_per_minute_per_ip", "max_push_bytes",
		"max_kept_bytes_per_ip"} {
		if n, _ := raw["limitation"].(map[string]any)[limit].(float64); n <= 0 {
			t.Errorf("limitation %s is %v", limit, n)
		}
	}
}

func TestCriteriaFollowTheSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "Any repository is hosted whose announcement names git.example.com in its clone and relays tags and whose git data arrives within 30 minutes."},
		{[]string{"--repository-whitelist=x", "--purgatory-hold=90s"}, "Repositories that the operator has put on a list are hosted whose announcement names git.example.com in its clone and relays tags and whose git data arrives within 1m30s."},
		{[]string{"--repository-blacklist=x"}, "Any repository is hosted whose announcement names git.example.com in its clone and relays tags and whose git data arrives within 30 minutes, unless the operator has excluded it or its author."},
	} {
		if got := document(settings(t, c.args...), "", "")["repo_acceptance_criteria"]; got != c.want {
			t.Errorf("%v:\n got %s\nwant %s", c.args, got, c.want)
		}
	}
}

func TestArchivesAreNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args     []string
		curation string
		grasp05  bool
	}{
		{nil, "", false},
		{[]string{"--archive-all"}, "All repositories are archived, read-only, though they do not list this service.", true},
		{[]string{"--archive-whitelist=tree", "--archive-read-only=false"},
			"Repositories on a list of the operator's are archived, and can be pushed to, though they do not list this service.", true},
		{[]string{"--archive-grasp-services=a.example,b.example", "--repository-blacklist=x"},
			"Repositories that the operator has excluded are never hosted. Repositories that are hosted by a.example, b.example are archived, read-only, though they do not list this service.", true},
	} {
		d := document(settings(t, c.args...), "", "")
		grasps := d["supported_grasps"].([]string)
		if text, _ := d["curation"].(string); text != c.curation || slices.Contains(grasps, "GRASP-05") != c.grasp05 {
			t.Errorf("%v: %q, %q", c.args, text, grasps)
		}
	}
}

func TestContributorsPullRequestsAreNamed(t *testing.T) {
	t.Parallel()
	d := document(settings(t, "--grasp06-enable"), "", "")
	if want := []string{"GRASP-01", "GRASP-02", "GRASP-06"}; !slices.Equal(d["supported_grasps"].([]string), want) || d["curation"] != nil {
		t.Errorf("%v; want %q", d, want)
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

func TestCurationFollowsTheLists(t *testing.T) {
	t.Parallel()
	npub, err := nip19.EncodePublicKey(strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want []string // parts of the text; none: there is no curation
	}{
		{nil, nil},
		{[]string{"--repository-whitelist=x"}, []string{"Only repositories on a list"}},
		{[]string{"--repository-blacklist=x"}, []string{"excluded are never hosted"}},
		{[]string{"--event-blacklist=" + npub}, []string{"signed by authors whom the operator has excluded"}},
		{[]string{"--event-blacklist=" + npub, "--repository-whitelist=x"}, []string{"Only repositories", "signed by"}},
	} {
		text, there := document(settings(t, c.args...), "", "")["curation"].(string)
		if there != (len(c.want) > 0) {
			t.Errorf("%v: curation %q", c.args, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) || strings.Contains(text, npub) {
				t.Errorf("%v: %q", c.args, text)
			}
		}
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"": "git.example.com grasp relay", "Mine": "Mine"} {
		if got := document(settings(t, "--relay-name="+name), "", "")["name"]; got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
}

func TestIcon(t *testing.T) {
	t.Parallel()
	write := func(body []byte) string {
		path := filepath.Join(t.TempDir(), "icon")
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
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
		if c.problem != "" {
			if err == nil || !strings.HasPrefix(err.Error(), "NGIT_RELAY_ICON is ") || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || url != c.url {
			t.Errorf("%s: %s, %v", name, url, err)
		}
	}
	if url, _, err := icon(settings(t, "--domain=localhost:7334")); err != nil || url != "http://localhost:7334/icon.png" {
		t.Errorf("without TLS: %s, %v", url, err)
	}
}
