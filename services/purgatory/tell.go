package purgatory

import (
	"encoding/json"
	"fmt"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repostate"
)

// someObjects is how many object ids a notice names: it is for people.
const someObjects = 5

// tell publishes what happened to the git data of an identifier, for those who watch.
func (w *worker) tell(identifier string, verb proto.GitVerb, n proto.GitNotice) {
	n.Identifier = identifier
	switch verb {
	case proto.GitFetched:
		w.hunter.Note(identifier, proto.Asked{At: time.Now(), URL: n.URL, Answer: fmt.Sprintf("brought %d bytes", n.Bytes)})
	case proto.GitFailed:
		w.hunter.Note(identifier, proto.Asked{At: time.Now(), URL: n.URL, Answer: n.Reason})
	}
	subject, err := proto.GitSubject(identifier, verb)
	if err != nil {
		return
	}
	data, err := json.Marshal(n)
	if err != nil {
		return
	}
	if err := w.node.Bus.Conn.Publish(subject, data); err != nil {
		w.log.Debug("notice not published", "subject", subject, "error", err)
	}
}

func npub(pubkey string) string { return repostate.Npub(pubkey) }

func some(ids []string) []string { return ids[:min(len(ids), someObjects)] }
