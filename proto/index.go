package proto

import (
	"fmt"
	"slices"
	"time"
)

// The index of one process is copied to another through the micro service grasp.query.index, in
// steps: everybody who has one makes an offer, one is asked to begin, its files are read chunk by
// chunk, and then it is told of the end. See lib/indexcopy.

// ServiceIndex is the name of that micro service.
const ServiceIndex = "grasp-index"

// IndexOfferEndpoint is the endpoint of that service that answers with an [IndexOffer].
const IndexOfferEndpoint = "offer"

const prefixIndex = "grasp.query.index."

// IndexChunk is how much of a file of the index comes in one message, in bytes; the last chunk of a
// file is what is left. The message begins with the CRC-32C (Castagnoli) of the chunk, 4 bytes,
// most significant first.
const IndexChunk = 256 << 10

// IndexVerb is what one replica is asked that gives a copy.
type IndexVerb string

// The verbs, in the order of their use.
const (
	IndexBegin IndexVerb = "begin" // makes a checkpoint and lists its files: [IndexCopy]
	IndexReads IndexVerb = "read"  // gives one chunk of one file: see [IndexRead]
	IndexEnd   IndexVerb = "end"   // lets go of the checkpoint
)

// IndexOffers is where all replicas are asked, that run as a user, whether they have an index to
// give. Those with ingest and those without have subjects of their own, because nobody who is open
// to the world may have a say in what ingest decides by: see [IndexCopies].
func IndexOffers(user string) string { return prefixIndex + user }

// IndexSubject is where one replica that has made an offer is asked, as a user. replica is from the
// offer; it must be a token of at most 64 letters and digits.
func IndexSubject(user, replica string, verb IndexVerb) (string, error) {
	if replica == "" || len(replica) > 64 {
		return "", fmt.Errorf("replica %.80q of an index: %w", replica, ErrSubject)
	}
	for i := range len(replica) {
		if !isPlain(replica[i]) {
			return "", fmt.Errorf("replica %.80q of an index: %w", replica, ErrSubject)
		}
	}
	return IndexOffers(user) + "." + replica + "." + string(verb), nil
}

// IndexCopies says as which user a process with these services gives copies of its index, and of
// which users it takes them, the best first. Processes without one of these users' services give
// and take none.
func IndexCopies(services []string) (gives string, takes []string) {
	switch {
	case slices.Contains(services, UserIngest):
		return UserIngest, []string{UserIngest}
	case slices.Contains(services, UserGateway):
		return UserGateway, []string{UserGateway, UserIngest}
	}
	return "", nil
}

// IndexAsk asks for offers, or begins a copy.
type IndexAsk struct {
	For string `json:"for"` // who wants it, for people
}

// IndexOffer is what a replica could give.
type IndexOffer struct {
	Replica string `json:"replica"`        // names it in subjects
	Name    string `json:"name"`           // names it for people
	Log     string `json:"log"`            // which log the index is of, and how it is laid out
	Format  uint64 `json:"format"`         // version of its files
	Seq     uint64 `json:"seq"`            // of the log, up to which it holds it
	Busy    bool   `json:"busy,omitempty"` // somebody else is being given a copy
}

// IndexCopy is a checkpoint of an index that may be read now.
type IndexCopy struct {
	Copy  string      `json:"copy"` // names it in what follows
	Seq   uint64      `json:"seq"`  // of the log, up to which it holds it at least
	Files []IndexFile `json:"files"`
}

// IndexLoan is a copy that a replica gives just now. It is the data of
// [IndexOfferEndpoint] in the statistics of [ServiceIndex], for people.
type IndexLoan struct {
	From  string    `json:"from"`  // who gives it
	For   string    `json:"for"`   // who takes it
	Seq   uint64    `json:"seq"`   // of the log, up to which it holds it at least; 0: the checkpoint is being made
	Bytes int64     `json:"bytes"` // of all its files
	Given int64     `json:"given"` // of them; those that were asked for twice count twice
	Since time.Time `json:"since"`
}

// IndexFile is a file of a checkpoint.
type IndexFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// IndexRead asks for a chunk of a file, or tells that a copy has ended.
type IndexRead struct {
	Copy  string `json:"copy"`
	File  int    `json:"file,omitempty"`  // its place among the files
	Chunk int    `json:"chunk,omitempty"` // its place in the file
}

// Codes of errors of grasp.query.index; [QueryBad] and [QueryFailed] mean here what they mean to
// grasp.query.reconcile.
const (
	QueryGone = "410" // the copy has ended: begin another
	QueryBusy = "429" // somebody else is being given a copy
)
