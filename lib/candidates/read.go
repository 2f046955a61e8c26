package candidates

import (
	"fmt"
	"strings"

	"github.com/mailru/easyjson/jlexer"

	"tendril.dev/proto"
)

// leastVerdict is about how many bytes the JSON of an accepted event's verdict has.
const leastVerdict = 100

// readVerdicts reads a message of verdicts. It does what encoding/json would, without reflection: a
// large sync brings one verdict an event.
func readVerdicts(data []byte) (vs proto.Verdicts, err error) {
	in := jlexer.Lexer{Data: data}
	readObject(&in, func(name string) bool {
		switch name {
		case "ref":
			vs.Ref = in.String()
		case "verdicts":
			vs.Verdicts = readList(&in, len(data)/leastVerdict+1)
		default:
			return false
		}
		return true
	})
	in.Consumed()
	if err := in.Error(); err != nil {
		return proto.Verdicts{}, fmt.Errorf("read verdicts: %w", err)
	}
	return vs, nil
}

// readList reads the list of verdicts, of which there may be about so many.
func readList(in *jlexer.Lexer, about int) []proto.Verdict {
	if in.IsNull() {
		in.Skip()
		return nil
	}
	list := make([]proto.Verdict, 0, min(about, proto.MaxPackEvents))
	in.Delim('[')
	for in.Ok() && !in.IsDelim(']') {
		var v proto.Verdict
		readVerdict(in, &v)
		list = append(list, v)
		in.WantComma()
	}
	in.Delim(']')
	return list
}

func readVerdict(in *jlexer.Lexer, v *proto.Verdict) {
	readObject(in, func(name string) bool {
		switch name {
		case "id":
			v.ID = in.String()
		case "kind":
			v.Kind = in.Int()
		case "outcome":
			v.Outcome = outcomeOf(in.UnsafeString())
		case "message":
			v.Message = in.String()
		case "seq":
			v.Seq = in.Uint64()
		case "retry":
			v.Retry = in.Bool()
		case "retry_at":
			v.RetryAt = in.Int64()
		default:
			return false
		}
		return true
	})
}

// outcomeOf is an outcome of which the text is not kept.
func outcomeOf(text string) proto.Outcome {
	for _, o := range [...]proto.Outcome{proto.Accepted, proto.Duplicate, proto.Rejected, proto.HeldBack, proto.Done} {
		if text == string(o) {
			return o
		}
	}
	return proto.Outcome(strings.Clone(text))
}

// readObject reads an object. field reads the value of the field of that name; false: it knows
// none, and the value is passed over. What is null is left as it is.
func readObject(in *jlexer.Lexer, field func(name string) bool) {
	if in.IsNull() {
		in.Skip()
		return
	}
	in.Delim('{')
	for in.Ok() && !in.IsDelim('}') {
		name := in.UnsafeFieldName(false)
		in.WantColon()
		if in.IsNull() {
			in.Skip()
		} else if !field(name) {
			in.SkipRecursive()
		}
		in.WantComma()
	}
	in.Delim('}')
}
