package proto

import "time"

// RepoVerb is what an operator asks purgatory about repositories.
type RepoVerb string

// The verbs of grasp.repo.<verb>. Every worker hears a question; who holds the shard answers.
const (
	RepoList    RepoVerb = "list"    // all repositories: each worker sends pages of those of its shards
	RepoShow    RepoVerb = "show"    // one repository
	RepoRestore RepoVerb = "restore" // cancel the removal of one
	RepoRemove  RepoVerb = "remove"  // remove one now
)

const (
	prefixRepo       = "grasp.repo."
	prefixRepoAnswer = prefixRepo + "answer."
)

// RepoVerbs are all verbs.
func RepoVerbs() []RepoVerb { return []RepoVerb{RepoList, RepoShow, RepoRestore, RepoRemove} }

// RepoSubject is where workers are asked, `grasp.repo.<verb>`.
func RepoSubject(verb RepoVerb) string { return prefixRepo + string(verb) }

// RepoAnswerSubject is where an answer goes, `grasp.repo.answer.<inbox>`. The one who asks names it
// as the reply subject of the request. inbox must be a token of letters and digits.
func RepoAnswerSubject(inbox string) string { return prefixRepoAnswer + inbox }

// ParseRepoAnswerSubject returns the inbox back. Purgatory answers to nothing else.
func ParseRepoAnswerSubject(subject string) (string, error) {
	return inbox("answer", prefixRepoAnswer, subject)
}

// RepoQuery is a request of an operator. That for a list is empty.
type RepoQuery struct {
	// Ref is the repository, as nostr.RepoRef.String writes it.
	Ref string `json:"ref,omitempty"`
}

// RepoAnswer is what purgatory answers.
type RepoAnswer struct {
	Repos  []RepoStatus `json:"repos,omitempty"`
	Shards int          `json:"shards,omitempty"` // of the last page of a list: how many shards were listed
	Error  string       `json:"error,omitempty"`  // why nothing was done, one sentence
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
	// and when it is removed (absent: never). Without a reason the log does not say that the owner gave
	// it up.
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
// asked about, if one does. Its reason is what clients are told. Without a time it is by the settings.
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
