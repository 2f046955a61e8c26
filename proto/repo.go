package proto

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"
)

// RepoVerb is what a purgatory worker is asked about the repositories of a shard. lib/gitquery asks
// and answers.
type RepoVerb string

// The questions, with their types. What has a reference to one repository is sent to the shard of
// that.
const (
	RepoList       RepoVerb = "list"       // RepoListQuestion, RepoListAnswer: all of the shard, a page at a time
	RepoShow       RepoVerb = "show"       // RepoQuestion, RepoStatus: one repository
	RepoReferences RepoVerb = "references" // RepoReferencesQuestion, RepoReferencesAnswer: its branches and tags, a page at a time
	RepoFolder     RepoVerb = "folder"     // RepoFolderQuestion, RepoFolderAnswer: a folder or a file of a branch or tag
	RepoLog        RepoVerb = "log"        // RepoLogQuestion, RepoLogAnswer: the commits of a branch or tag
	RepoAges       RepoVerb = "ages"       // RepoAgesQuestion, RepoAgesAnswer: how old its branches and tags are
	RepoWaits      RepoVerb = "waits"      // RepoQuestion, RepoWaitsAnswer: whether it is here, and what it waits for
	RepoRestore    RepoVerb = "restore"    // RepoQuestion, RepoStatus: cancel the removal of one
	RepoRemove     RepoVerb = "remove"     // RepoQuestion, RepoStatus: remove one now
)

const prefixRepo = "grasp.repo."

// repoVerbs are all verbs. Operators may ask all of them; forPages are those that the gateway asks for
// its pages. The permissions on the NATS server and the gateway's client follow this table.
var repoVerbs = []struct {
	verb     RepoVerb
	forPages bool
}{
	{RepoList, false}, {RepoShow, false}, {RepoReferences, false}, {RepoFolder, true}, {RepoLog, true}, {RepoAges, true},
	{RepoWaits, true}, {RepoRestore, false}, {RepoRemove, false},
}

// RepoVerbs are all verbs, and PageVerbs those that the gateway may ask.
func RepoVerbs() []RepoVerb { return verbsThat(false) }
func PageVerbs() []RepoVerb { return verbsThat(true) }

func verbsThat(forPages bool) (verbs []RepoVerb) {
	for _, row := range repoVerbs {
		if row.forPages || !forPages {
			verbs = append(verbs, row.verb)
		}
	}
	return verbs
}

// RepoSubject is where the worker that holds a shard is asked, `grasp.repo.<shard>.<verb>`. Shard
// and verb may be "*". So NATS finds the worker, and says where there is none.
//
// The question may have [HeaderTimeout]. The answer is the JSON of its type, or an error with the
// headers of the micro service protocol, whose codes are [QueryBad], [RepoBusy], [RepoMoved] and
// [QueryFailed].
func RepoSubject(shard string, verb RepoVerb) string { return prefixRepo + shard + "." + string(verb) }

// ParseRepoSubject returns the verb of a question.
func ParseRepoSubject(subject string) (RepoVerb, error) {
	parts, err := tokens("repository question", prefixRepo, subject, 2)
	if err != nil {
		return "", err
	}
	if verb := RepoVerb(parts[1]); slices.Contains(RepoVerbs(), verb) {
		return verb, nil
	}
	return "", notOf("repository question", subject)
}

// Codes of errors. With these two nothing was done, and the question may be asked again.
const (
	RepoMoved = "421" // the worker does not hold the shard any more
	RepoBusy  = "429" // too many questions wait
)

// MaxRepoAnswer is how many bytes of JSON a page of an answer has, or a single larger item.
const MaxRepoAnswer = 256 << 10

// RepoQuestion names a repository.
type RepoQuestion struct {
	// Ref is the repository, as nostr.RepoRef.String writes it.
	Ref string `json:"ref"`
}

// RepoListQuestion asks for a page of the repositories of a shard, in the order of their refs.
type RepoListQuestion struct {
	After string `json:"after,omitempty"` // ref of the last one of the page before
}

// RepoListAnswer is a page of the list.
type RepoListAnswer struct {
	Repos []RepoStatus `json:"repos,omitempty"`
	More  bool         `json:"more,omitempty"`
}

// RepoReferencesQuestion asks for a page of the branches and tags of a repository, in the order of
// their names.
type RepoReferencesQuestion struct {
	Ref   string `json:"ref"`
	After string `json:"after,omitempty"` // full name of the last one of the page before
}

// RepoReferencesAnswer is a page of branches and tags.
type RepoReferencesAnswer struct {
	Head       string          `json:"head,omitempty"` // full name of the branch
	References []RepoReference `json:"references,omitempty"`
	More       bool            `json:"more,omitempty"`
}

// RepoReference is a branch or a tag.
type RepoReference struct {
	Name   string `json:"name"`   // refs/heads/… or refs/tags/…
	Object string `json:"object"` // id
}

const (
	// MaxRepoFile is the size of the largest file that an answer carries, in bytes.
	MaxRepoFile = 384 << 10
	// MaxRepoEntries is how many entries of a folder an answer names at most.
	MaxRepoEntries = 1000
	// MaxRepoCommits is how many commits an answer names at most, and MaxRepoSkip how many come
	// before them at most.
	MaxRepoCommits, MaxRepoSkip = 50, 10_000
)

// RepoFolderQuestion asks for a folder or a file of a branch or tag. What no branch or tag names
// cannot be asked for.
type RepoFolderQuestion struct {
	Ref    string `json:"ref"`
	Name   string `json:"name"`             // refs/heads/… or refs/tags/…
	Path   string `json:"path,omitempty"`   // its parts are separated by slashes; empty: the root
	Client string `json:"client,omitempty"` // key of the client that waits, see [HeaderClient]
}

// RepoFolderAnswer is a folder with its file of the name README, or a file. Without a commit there
// is no such branch, tag, folder or file.
type RepoFolderAnswer struct {
	Commit  *RepoCommit `json:"commit,omitempty"` // of the branch or tag
	Entries []RepoEntry `json:"entries,omitempty"`
	More    bool        `json:"more,omitempty"`    // the folder has more entries
	Partial bool        `json:"partial,omitempty"` // there was no time to look for all last changes
	Readme  *RepoFile   `json:"readme,omitempty"`
	File    *RepoFile   `json:"file,omitempty"`     // absent: the path is that of a folder
	RefsSum string      `json:"refs_sum,omitempty"` // see SumOfRefs
}

// SumOfRefs is a sum of branches and tags by their full names, and of what they name. Answers carry
// that of the worker's; by it a page knows whether the worker has what the state event says.
func SumOfRefs(refs map[string]string) string {
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		fmt.Fprintf(sum, "%s %s\n", refs[name], name)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}

// RepoCommit is a commit. All but its id is what its author wrote.
type RepoCommit struct {
	ID      string    `json:"id"`
	Author  string    `json:"author,omitempty"`
	Subject string    `json:"subject,omitempty"`
	At      time.Time `json:"at,omitzero"` // of the committer
}

// RepoEntry is an entry of a folder.
type RepoEntry struct {
	Name string        `json:"name"`
	Kind RepoEntryKind `json:"kind"`
	// Changed is the last commit that changed the entry; absent: none of those that were looked at,
	// the newest ones.
	Changed *RepoCommit `json:"changed,omitempty"`
}

// RepoEntryKind is what an entry of a folder is.
type RepoEntryKind string

// The kinds of entries.
const (
	EntryFolder    RepoEntryKind = "folder"
	EntryFile      RepoEntryKind = "file"
	EntryLink      RepoEntryKind = "link"      // symbolic
	EntrySubmodule RepoEntryKind = "submodule" // a commit of another repository
)

// RepoFile is a file.
type RepoFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Data  []byte `json:"data,omitempty"` // absent: the file is empty, or larger than [MaxRepoFile]
}

// RepoLogQuestion asks for commits of a branch or tag, the newest first.
type RepoLogQuestion struct {
	Ref    string `json:"ref"`
	Name   string `json:"name"`             // refs/heads/… or refs/tags/…
	Skip   int    `json:"skip,omitempty"`   // how many come before those that are asked for
	Client string `json:"client,omitempty"` // as in RepoFolderQuestion
}

// RepoLogAnswer is some commits. Without any there is no such branch or tag, or there are no more.
type RepoLogAnswer struct {
	Commits []RepoCommit `json:"commits,omitempty"`
	More    bool         `json:"more,omitempty"`
	RefsSum string       `json:"refs_sum,omitempty"` // see SumOfRefs
}

// RepoAgesQuestion asks how old the branches and tags of a repository are.
type RepoAgesQuestion struct {
	Ref    string `json:"ref"`
	Client string `json:"client,omitempty"` // as in RepoFolderQuestion
}

// MaxRepoAges is how many branches and tags an answer names at most, the newest ones.
const MaxRepoAges = 1000

// RepoAgesAnswer says when the commits of branches and tags were made; of a tag with a text, when
// that was written. The keys are full names.
type RepoAgesAnswer struct {
	Times   map[string]time.Time `json:"times,omitempty"`
	RefsSum string               `json:"refs_sum,omitempty"` // see SumOfRefs
}

// RepoWaitsAnswer says what a visitor is told of a repository that no accepted event announces.
type RepoWaitsAnswer struct {
	Here  bool   `json:"here"`            // it is served or held
	Waits *Waits `json:"waits,omitempty"` // absent: no event waits for its git data
}

// RepoState is where a repository stands.
type RepoState string

// The states of a repository. None: its worker has not looked at it since it took the shard.
const (
	RepoHosted RepoState = "hosted"
	RepoHeld   RepoState = "held"  // its announcement waits for git data
	RepoEnded  RepoState = "ended" // it is not hosted any more
)

// RepoStatus is how a repository stands. In a list it stands so when its worker last looked at it.
type RepoStatus struct {
	Ref   string    `json:"ref"` // 30617:<pubkey>:<identifier>
	State RepoState `json:"state,omitempty"`

	// Of one that is held since when it waits and until when it does; of one that has ended since when
	// and when it is removed (absent: never). Without a reason the log does not say that the owner
	// gave it up.
	Since        time.Time `json:"since,omitzero"`
	Until        time.Time `json:"until,omitzero"`
	Reason       string    `json:"reason,omitempty"`       // "deleted", "moved" or "banned"
	Announcement string    `json:"announcement,omitempty"` // id of the last one
	Kept         bool      `json:"kept,omitempty"`         // an operator has cancelled the removal

	References int       `json:"references,omitempty"`
	Changed    time.Time `json:"changed,omitzero"` // when a push or a fetch last moved references; absent: there are none
	Bytes      int64     `json:"bytes,omitempty"`  // of git objects; its maintainers' repositories may share them
	// Damage is why the references cannot be read, one sentence; empty: they can.
	Damage string `json:"damage,omitempty"`
	// NoAuthority is why no one has authority over one that is hosted, and what would change that;
	// empty: there is authority. Its branches and tags stay as they are.
	NoAuthority string `json:"no_authority,omitempty"`

	// Of one that is shown, and of one that was removed.
	Beside []string `json:"beside,omitempty"` // other repositories of the identifier on the disk
	Events int      `json:"events,omitempty"` // accepted events that name it
	States int      `json:"states,omitempty"` // accepted states of the identifier, by any author
	Waits  *Waits   `json:"waits,omitempty"`  // absent: no event waits for its git data
}

// Waits is what a repository waits for, and what was done about it.
type Waits struct {
	Until   time.Time `json:"until,omitzero"`    // when the first event that waits goes
	Next    time.Time `json:"next,omitzero"`     // when git servers are asked again
	Named   int       `json:"named,omitempty"`   // how many objects the events name; 0: no state event has come
	Missing []string  `json:"missing,omitempty"` // ids of those that are not here, at most a few
	Asked   []Asked   `json:"asked,omitempty"`   // the last answers of git servers
}

// Asked is what a git server has answered.
type Asked struct {
	At     time.Time `json:"at"`
	URL    string    `json:"url"`
	Answer string    `json:"answer"`
}

// Why asks what was refused lately that no stream remembers: an event, or what was offered for a
// repository. Every replica of ingest answers with a [WhyAnswer].
type Why struct {
	Event string `json:"event,omitempty"` // id
	Ref   string `json:"ref,omitempty"`   // 30617:<pubkey>:<identifier>
}

// WhyAnswer is what one replica remembers, the last refusal first, and the ban that hides what is
// asked about, if one does. Its reason is what clients are told. Without a time it is by the
// settings.
type WhyAnswer struct {
	Refusals []Refusal `json:"refusals,omitempty"`
	Ban      *Ban      `json:"ban,omitempty"`
}

// Refusal is an event that was refused.
type Refusal struct {
	At     time.Time `json:"at"`
	Event  string    `json:"event"` // id
	Kind   int       `json:"kind"`
	Ref    string    `json:"ref,omitempty"`    // 30617:<pubkey>:<identifier>, of its author's repository
	Client string    `json:"client,omitempty"` // key of the client that submitted it, see [HeaderClient]
	Relay  string    `json:"relay,omitempty"`
	Reason string    `json:"reason"`
}
