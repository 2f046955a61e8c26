package proto

import (
	"maps"
	"os"
	"reflect"
	"regexp"
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
	target, _ := TargetSubject("r.example.com")
	wanted, _ := WantedSubject("r.example.com", "30617:"+author+":repo")
	git, _ := GitSubject("repo", GitFetched)
	held, _ := HeldKey("repo", ev)
	subjects := map[string]string{
		"candidateUser":     LaneUser.Subject(),
		"candidateRelease":  LaneRelease.Subject(),
		"candidateLive":     LaneSyncLive.Subject(),
		"candidateHistoric": LaneSyncHistoric.Subject(),
		"candidateDaily":    LaneSyncDaily.Subject(),
		"candidateImport":   LaneImport.Subject(),
		"event":             EventSubjectOf(ev).String(),
		"eventsMark":        SubjectEventsMark,
		"ephemeral":         EphemeralSubject(ev),
		"fetch":             SubjectFetch,
		"rejected":          RejectedSubject{1621, ShortID(someID)}.String(),
		"target":            target,
		"wanted":            wanted,
		"verdict":           VerdictSubject("in"),
		"git":               git,
		"held":              KVSubject(BucketHeld, held),
		"relay":             KVSubject(BucketRelays, "r.example.com"),
		"usage":             KVSubject(BucketUsage, UsageKey("events", "author", "a")),
		"ban":               KVSubject(BucketBans, "author."+author),
		"manage":            SubjectManage,
		"claim":             KVSubject(BucketClaims, ClaimKey("g", "n")),
		"worker":            KVSubject(BucketWorkers, ClaimKey("g", "w")),
		"queryIds":          SubjectQueryIDs,
		"progress":          SubjectProgress,
		"queryEvents":       SubjectQueryEvents,
		"why":               SubjectWhy,
		"repo":              RepoSubject("07", RepoShow),
	}
	if a, b := slices.Sorted(maps.Keys(subjects)), slices.Sorted(maps.Keys(doc.Channels)); !slices.Equal(a, b) {
		t.Fatalf("channels: the code has %q, asyncapi.yaml %q", a, b)
	}
	for name, subject := range subjects {
		parts := regexp.MustCompile(`\{\w+\}`).Split(doc.Channels[name].Address, -1)
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		if !regexp.MustCompile("^" + strings.Join(parts, ".+") + "$").MatchString(subject) {
			t.Errorf("channel %s: the code says %q, asyncapi.yaml %q", name, subject, doc.Channels[name].Address)
		}
	}
}

func TestAsyncAPISchemasAreOurTypes(t *testing.T) {
	t.Parallel()
	doc := readDocument(t)
	types := map[string]reflect.Type{}
	for _, v := range []any{
		nostr.Event{}, Verdict{}, Verdicts{}, Held{}, RejectedEvent{}, Fetch{}, Target{}, Wanted{}, RelayState{}, Worker{}, Claim{}, GitNotice{},
		Usage{}, Ban{}, ManageRequest{}, ManageAnswer{}, WriterMark{}, ReconcileQuery{}, ReconcileAnswer{}, Progress{}, Disk{}, Reading{},
		EventsQuery{}, EventsAnswer{}, PageCursor{}, RepoQuestion{}, RepoListQuestion{}, RepoListAnswer{}, RepoReferencesQuestion{}, RepoReferencesAnswer{},
		RepoReference{}, RepoFolderQuestion{}, RepoFolderAnswer{}, RepoCommit{}, RepoEntry{}, RepoFile{}, RepoLogQuestion{}, RepoLogAnswer{},
		RepoAgesQuestion{}, RepoAgesAnswer{}, RepoWaitsAnswer{}, RepoStatus{}, Waits{}, Asked{}, Why{}, WhyAnswer{}, Refusal{},
	} {
		types[reflect.TypeOf(v).Name()] = reflect.TypeOf(v)
	}
	if a, b := slices.Sorted(maps.Keys(types)), slices.Sorted(maps.Keys(doc.Components.Schemas)); !slices.Equal(a, b) {
		t.Fatalf("schemas: the code has %q, asyncapi.yaml %q", a, b)
	}
	for name, v := range types {
		got := slices.Sorted(maps.Keys(doc.Components.Schemas[name].Properties))
		if want := jsonFields(v); !slices.Equal(want, got) {
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
	want := []string{HeaderSource, HeaderRelay, HeaderClient, HeaderReply, HeaderTimeout, HeaderRef, HeaderAction, HeaderReason, HeaderRemoved, HeaderTraceParent}
	if got := slices.Sorted(maps.Keys(headers)); !slices.Equal(slices.Sorted(slices.Values(want)), got) {
		t.Errorf("headers: the code has %q, asyncapi.yaml %q", want, got)
	}
	candidate := doc.Components.Messages["Candidate"].Headers.Properties
	for name, e := range map[string]struct{ want, got []string }{
		"verb":      {texts(GitFetched, GitFailed, GitPushed, GitRefused, GitReleased, GitExpired, GitEnded, GitReturned, GitRemoved), doc.Channels["git"].Parameters["verb"].Enum},
		"outcome":   {texts(Accepted, HeldBack, Duplicate, Rejected, Done, PassedOn), doc.Components.Schemas["Verdict"].Properties["outcome"].Enum},
		"phase":     {texts(PhaseWaiting, PhaseSilent, PhaseVouched), doc.Components.Schemas["Held"].Properties["phase"].Enum},
		"level":     {texts(LevelFull, LevelStateOnly, LevelPast, LevelPerson), doc.Components.Schemas["Wanted"].Properties["level"].Enum},
		"source":    {texts(SourceUser, SourceLive, SourceStartup, SourceReconnect, SourceDaily, SourceRelease, SourceImport), enumOf(candidate[HeaderSource])},
		"action":    {texts(ActionRelease, ActionExpire, ActionExtend, ActionRemove), enumOf(candidate[HeaderAction])},
		"repo verb": {texts(RepoVerbs()...), doc.Channels["repo"].Parameters["verb"].Enum},
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

func texts[T ~string](all ...T) (texts []string) {
	for _, text := range all {
		texts = append(texts, string(text))
	}
	return texts
}
