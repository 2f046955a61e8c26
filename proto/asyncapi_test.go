package proto

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
	"gopkg.in/yaml.v3"
)

// document is as much of asyncapi.yaml as the code must agree with.
type document struct {
	Channels map[string]struct {
		Address    string
		Parameters map[string]struct{ Enum []string }
		Messages   map[string]ref
		Stream     string `yaml:"x-stream"`
		Told       string `yaml:"x-republished"`
	}
	Components struct {
		Messages map[string]struct {
			Headers struct{ Properties map[string]any }
			Payload map[string]any
		}
		Schemas map[string]struct {
			Properties map[string]struct{ Enum []string }
		}
	}
}

type ref struct {
	Ref string `yaml:"$ref"`
}

func readDocument(t *testing.T) document {
	t.Helper()
	text, err := os.ReadFile("asyncapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc document
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestAsyncAPIHasEveryStreamAndItsSubjects(t *testing.T) {
	t.Parallel()
	doc := readDocument(t)
	want, got := map[string][]string{}, map[string][]string{} // subjects as far as their first parameter, and where changes are told
	for name, c := range doc.Channels {
		if c.Stream == "" {
			continue
		}
		subject, _, parameters := strings.Cut(c.Address, "{")
		if parameters {
			subject += ">"
		}
		if got[c.Stream] = append(got[c.Stream], subject); c.Told != "" {
			got[c.Stream] = append(got[c.Stream], "told on "+c.Told)
		}
		if len(c.Messages) != 1 {
			t.Errorf("channel %s has %d messages, want 1", name, len(c.Messages))
		}
	}
	for _, cfg := range Streams(DefaultSizing()) {
		want[cfg.Name] = cfg.Subjects
		if cfg.RePublish != nil {
			want[cfg.Name] = append(want[cfg.Name], "told on "+cfg.RePublish.Destination)
		}
	}
	for stream := range maps.Keys(want) {
		slices.Sort(want[stream])
		got[stream] = slices.Compact(slices.Sorted(slices.Values(got[stream])))
	}
	if !reflect.DeepEqual(want, got) {
		t.Errorf("streams: the code has %q, asyncapi.yaml %q", want, got)
	}
}

func TestAsyncAPIAddressesAreOurSubjects(t *testing.T) {
	t.Parallel()
	doc := readDocument(t)
	ev := &nostr.Event{ID: someID, PubKey: author, Kind: 1621}
	short := ShortID(someID)
	target, _ := TargetSubject("r.example.com")
	wanted, _ := WantedSubject("r.example.com", "30617:"+author+":repo")
	git, _ := GitSubject("repo", GitFetched)
	held, _ := HeldKeyOf("repo", ev).Key()
	values := map[string]map[string]string{
		"candidateUser":     {"": LaneUser.Subject()},
		"candidateRelease":  {"": LaneRelease.Subject()},
		"candidateLive":     {"": LaneSyncLive.Subject()},
		"candidateHistoric": {"": LaneSyncHistoric.Subject()},
		"candidateDaily":    {"": LaneSyncDaily.Subject()},
		"event":             {"": EventSubjectOf(ev).String(), "kind": "1621", "pubkey": author, "slot": short},
		"eventsMark":        {"": SubjectEventsMark},
		"rejected":          {"": RejectedSubject{1621, short}.String(), "kind": "1621", "shortId": short},
		"target":            {"": target, "relay": "r.example.com"},
		"wanted":            {"": wanted, "relay": "r.example.com", "pubkey": author, "identifier": "repo"},
		"verdict":           {"": VerdictSubject("in"), "inbox": "in"},
		"git":               {"": git, "identifier": "repo", "verb": "fetched"},
		"held":              {"": KVSubject(BucketHeld, held), "shard": ShardName(ShardOf("repo")), "identifier": "repo", "kind": "1621", "shortId": short},
		"relay":             {"": KVSubject(BucketRelays, "r.example.com"), "relay": "r.example.com"},
		"usage":             {"": KVSubject(BucketUsage, UsageKey("events", "author", "a")), "what": "events", "kind": "author", "name": "YQ"},
		"ban":               {"": KVSubject(BucketBans, "author."+author), "what": "author", "name": author},
		"manage":            {"": SubjectManage},
		"claim":             {"": KVSubject(BucketClaims, ClaimKey("g", "n")), "group": "g", "name": "n"},
		"worker":            {"": KVSubject(BucketWorkers, ClaimKey("g", "w")), "group": "g", "worker": "w"},
		"queryIds":          {"": SubjectQueryIDs},
		"queryReconcile":    {"": SubjectQueryReconcile},
		"progress":          {"": SubjectProgress},
		"queryEvents":       {"": SubjectQueryEvents},
		"why":               {"": SubjectWhy},
		"repo":              {"": RepoSubject(RepoShow), "verb": "show"},
		"repoAnswer":        {"": RepoAnswerSubject("in"), "inbox": "in"},
	}
	if a, b := slices.Sorted(maps.Keys(values)), slices.Sorted(maps.Keys(doc.Channels)); !slices.Equal(a, b) {
		t.Fatalf("channels: the code has %q, asyncapi.yaml %q", a, b)
	}
	for name, params := range values {
		address := doc.Channels[name].Address
		for p, v := range params {
			if p != "" {
				address = strings.ReplaceAll(address, "{"+p+"}", v)
			}
		}
		if address != params[""] {
			t.Errorf("channel %s: the code says %q, asyncapi.yaml %q", name, params[""], address)
		}
	}
}

func TestAsyncAPISchemasAreOurTypes(t *testing.T) {
	t.Parallel()
	doc := readDocument(t)
	types := map[string]any{
		"Event": nostr.Event{}, "Verdict": Verdict{}, "Verdicts": Verdicts{}, "Held": Held{}, "RejectedEvent": RejectedEvent{},
		"Target": Target{}, "Wanted": Wanted{}, "RelayState": RelayState{}, "Worker": Worker{}, "Claim": Claim{},
		"GitNotice": GitNotice{}, "Usage": Usage{}, "Ban": Ban{}, "ManageRequest": ManageRequest{}, "ManageAnswer": ManageAnswer{}, "WriterMark": WriterMark{},
		"ReconcileQuery": ReconcileQuery{}, "ReconcileAnswer": ReconcileAnswer{},
		"Progress": Progress{}, "Disk": Disk{}, "Reading": Reading{}, "EventsQuery": EventsQuery{}, "EventsAnswer": EventsAnswer{}, "Place": Place{},
		"RepoQuery": RepoQuery{}, "RepoAnswer": RepoAnswer{}, "RepoStatus": RepoStatus{},
		"Waits": Waits{}, "Asked": Asked{}, "Why": Why{}, "WhyAnswer": WhyAnswer{}, "Refusal": Refusal{},
	}
	if a, b := slices.Sorted(maps.Keys(types)), slices.Sorted(maps.Keys(doc.Components.Schemas)); !slices.Equal(a, b) {
		t.Fatalf("schemas: the code has %q, asyncapi.yaml %q", a, b)
	}
	for name, v := range types {
		got := slices.Sorted(maps.Keys(doc.Components.Schemas[name].Properties))
		if want := jsonFields(reflect.TypeOf(v)); !slices.Equal(want, got) {
			t.Errorf("%s: the code has the fields %q, asyncapi.yaml %q", name, want, got)
		}
	}
}

func TestAsyncAPIHeadersAndEnumsAreOurs(t *testing.T) {
	t.Parallel()
	doc := readDocument(t)
	headers := map[string]bool{}
	for _, m := range doc.Components.Messages {
		for h := range m.Headers.Properties {
			headers[h] = true
		}
	}
	want := []string{HeaderSource, HeaderRelay, HeaderClient, HeaderReply, HeaderRef, HeaderAction, HeaderReason, HeaderAcceptedAt, HeaderRemoved, HeaderTraceParent}
	if got := slices.Sorted(maps.Keys(headers)); !slices.Equal(slices.Sorted(slices.Values(want)), got) {
		t.Errorf("headers: the code has %q, asyncapi.yaml %q", want, got)
	}
	candidate := doc.Components.Messages["Candidate"].Headers.Properties
	for name, e := range map[string]struct{ want, got []string }{
		"verb":      {[]string{string(GitFetched), string(GitFailed), string(GitPushed), string(GitRefused), string(GitReleased), string(GitExpired), string(GitEnded), string(GitReturned), string(GitRemoved)}, doc.Channels["git"].Parameters["verb"].Enum},
		"outcome":   {[]string{string(Accepted), string(HeldBack), string(Duplicate), string(Rejected), string(Done)}, doc.Components.Schemas["Verdict"].Properties["outcome"].Enum},
		"phase":     {[]string{string(PhaseWaiting), string(PhaseSilent), string(PhaseVouched)}, doc.Components.Schemas["Held"].Properties["phase"].Enum},
		"level":     {[]string{string(LevelFull), string(LevelStateOnly)}, doc.Components.Schemas["Wanted"].Properties["level"].Enum},
		"source":    {[]string{string(SourceUser), string(SourceLive), string(SourceStartup), string(SourceReconnect), string(SourceDaily), string(SourceRelease), string(SourceImport)}, enumOf(candidate[HeaderSource])},
		"action":    {[]string{string(ActionRelease), string(ActionExpire), string(ActionExtend), string(ActionRemove)}, enumOf(candidate[HeaderAction])},
		"repo verb": {[]string{string(RepoList), string(RepoShow), string(RepoRestore), string(RepoRemove)}, doc.Channels["repo"].Parameters["verb"].Enum},
	} {
		if !slices.Equal(e.want, e.got) {
			t.Errorf("%s: the code has %q, asyncapi.yaml %q", name, e.want, e.got)
		}
	}
}

func enumOf(property any) []string {
	m, _ := property.(map[string]any)
	values, _ := m["enum"].([]any)
	var out []string
	for _, v := range values {
		out = append(out, v.(string))
	}
	return out
}

func jsonFields(t reflect.Type) []string {
	var fields []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.IsExported():
			name = strings.ToLower(f.Name) // nostr.Event encodes itself
			if f.Name == "CreatedAt" {
				name = "created_at"
			}
			fallthrough
		case name != "" && name != "-":
			fields = append(fields, name)
		}
	}
	slices.Sort(fields)
	return fields
}
