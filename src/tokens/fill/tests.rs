use super::*;
use dlfs_base::permutation::Key;

/// Numbers for the cases.
struct Random(Key, u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.1 += 1;
        ((u128::from(self.0.with(self.1).word()) * u128::from(end)) >> 64) as u64
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// Documents, rules and rows of a random case.
struct Case {
    kind: TokenType,
    /// The tokens of each document, and its loss bytes.
    documents: Vec<(Vec<i64>, Vec<u8>)>,
    rules: FillRules,
    layout: Layout,
    seq_len: u32,
}

/// The values of one column.
#[derive(Debug, PartialEq)]
struct Cell {
    token: i64,
    segment: i32,
    position: i32,
    loss: u8,
    sample: i64,
}

impl Case {
    fn new(random: &mut Random) -> Case {
        let kind = [TokenType::U8, TokenType::U16, TokenType::U32, TokenType::I32]
            [random.below(4) as usize];
        let separator = random.one_in(2).then_some(3);
        let pack = [Pack::Concat, Pack::BestFit, Pack::None][random.below(3) as usize];
        let rules = FillRules { pack, separator, pad: random.below(9) as u32, vocabulary: None };
        let seq_len = 1 + random.below(24) as u32;
        let num_rows = random.below(5) as u32;
        let mut documents = Vec::new();
        let mut segments = Vec::new();
        for row in 0..num_rows {
            let mut column = 0;
            while column <= seq_len && (column == 0 || !random.one_in(4)) {
                let len = 1 + random.below(u64::from(seq_len + 1 - column)) as u32;
                let from = random.below(4) as u32;
                let behind = random.below(2) as u32 * random.below(5) as u32;
                let has = (from + len + behind - u32::from(separator.is_some())) as usize;
                let tokens = (0..has).map(|_| random.below(200) as i64).collect();
                let loss = (0..has).map(|_| random.below(3) as u8).collect();
                let document = documents.len() as u32;
                documents.push((tokens, loss));
                segments.push(Segment { row, column, document, from, len });
                column += len;
            }
        }
        Case { kind, documents, rules, layout: Layout { num_rows, seq_len, segments }, seq_len }
    }

    fn bytes(&self, document: usize) -> Vec<u8> {
        let each = self.documents[document].0.iter();
        each.flat_map(|token| token.to_le_bytes()[..self.kind.len_bytes()].to_vec()).collect()
    }

    /// The columns of one row, one after the other.
    fn row(&self, row: u32, has_loss: bool) -> Vec<Cell> {
        let mut cells = Vec::new();
        let in_row = self.layout.segments.iter().filter(|segment| segment.row == row);
        for (number, segment) in in_row.enumerate() {
            let (tokens, loss) = &self.documents[segment.document as usize];
            for nth in 0..segment.len {
                let at = (segment.from + nth) as usize;
                let separator = self.rules.separator.map(i64::from);
                let token = tokens.get(at).copied().or(separator).unwrap();
                let is_learned = !has_loss || loss.get(at).is_none_or(|&loss| loss > 0);
                let is_start = nth == 0 && self.rules.pack != Pack::Concat;
                cells.push(Cell {
                    token,
                    segment: number as i32 + 1,
                    position: nth as i32,
                    loss: u8::from(is_learned && !is_start),
                    sample: 100 + i64::from(segment.document),
                });
            }
        }
        let pad = self.rules.pad.into();
        let padding = || Cell { token: pad, segment: 0, position: 0, loss: 0, sample: -1 };
        cells.resize_with(self.seq_len as usize + 1, padding);
        cells
    }

    /// All arrays by `fill`, as cells, and the starts of sequences.
    fn filled(
        &self,
        columns: &Columns,
        array: usize,
        has_loss: bool,
    ) -> Result<(Vec<Cell>, Vec<i32>)> {
        let len = self.layout.num_rows as usize * columns.width();
        let bytes: Vec<Vec<u8>> = (0..self.documents.len()).map(|nth| self.bytes(nth)).collect();
        let documents = |nth: usize| {
            Ok(Document {
                tokens: &bytes[nth],
                token_type: self.kind,
                loss: has_loss.then_some(&self.documents[nth].1),
                id: SampleId(100 + nth as u64),
                source: Some("web"),
            })
        };
        let mut narrow = vec![7; len];
        let mut unsigned = vec![7; len];
        let mut signed = vec![7; len];
        let mut wide = vec![7; len];
        let tokens = match array {
            0 => TokensMut::U16(&mut narrow),
            1 => TokensMut::U32(&mut unsigned),
            2 => TokensMut::I32(&mut signed),
            _ => TokensMut::I64(&mut wide),
        };
        let mut segment_ids = vec![7; len];
        let mut position_ids = vec![7; len];
        let mut loss_mask = vec![7; len];
        let mut sample_ids = vec![7; len];
        let mut starts = vec![7];
        let mut arrays = Arrays {
            tokens,
            segment_ids: Some(&mut segment_ids),
            position_ids: Some(&mut position_ids),
            loss_mask: Some(&mut loss_mask),
            cu_seqlens: columns.is_all().then_some(&mut starts),
            sample_ids: Some(&mut sample_ids),
        };
        fill(&self.layout, columns, &self.rules, documents, &mut arrays)?;
        let token = |at: usize| match array {
            0 => narrow[at].into(),
            1 => unsigned[at].into(),
            2 => signed[at].into(),
            _ => wide[at],
        };
        let cell = |at: usize| Cell {
            token: token(at),
            segment: segment_ids[at],
            position: position_ids[at],
            loss: loss_mask[at],
            sample: sample_ids[at],
        };
        Ok(((0..len).map(cell).collect(), starts))
    }

    /// The message of `fill` into an array of this number.
    fn refused(&self, array: usize) -> String {
        self.filled(&Columns::all(self.seq_len), array, true).unwrap_err().to_string()
    }
}

/// A case of one document in one row of 4 inputs.
fn one(kind: TokenType, tokens: &[i64]) -> Case {
    let len = tokens.len() as u32;
    Case {
        kind,
        documents: vec![(tokens.to_vec(), vec![1; tokens.len()])],
        rules: FillRules { pack: Pack::Concat, separator: None, pad: 0, vocabulary: None },
        layout: Layout {
            num_rows: 1,
            seq_len: 4,
            segments: vec![Segment { row: 0, column: 0, document: 0, from: 0, len }],
        },
        seq_len: 4,
    }
}

#[test]
fn all_arrays_have_for_each_column_what_the_layout_says() {
    let mut random = Random(Key::derive(31, &[]), 0);
    for case in 0..2000 {
        println!("case {case}");
        let it = Case::new(&mut random);
        let has_loss = random.one_in(2);
        let array = random.below(4) as usize;
        let rows: Vec<Vec<Cell>> =
            (0..it.layout.num_rows).map(|row| it.row(row, has_loss)).collect();
        let (cells, starts) = it.filled(&Columns::all(it.seq_len), array, has_loss).unwrap();
        assert_eq!(cells, rows.iter().flatten().map(copy).collect::<Vec<Cell>>());

        // A sequence starts wherever the segment differs from that of the input before.
        let inputs = rows.iter().enumerate().flat_map(|(row, cells)| {
            cells[..it.seq_len as usize].iter().map(move |cell| (row, cell.segment))
        });
        let inputs: Vec<(usize, i32)> = inputs.collect();
        let mut right: Vec<i32> = (0..inputs.len())
            .filter(|&at| at == 0 || inputs[at] != inputs[at - 1])
            .map(|at| at as i32)
            .collect();
        right.push(inputs.len() as i32);
        if inputs.is_empty() {
            right = vec![0];
        }
        assert_eq!(starts, right);
        let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        assert_eq!(it.layout.max_seqlen(it.seq_len), longest as u32);

        for (cp_size, zigzag) in [(1, true), (2, false), (2, true), (3, false), (4, true)] {
            let chunks = if zigzag && cp_size > 1 { 2 } else { 1 };
            let parts = cp_size * chunks;
            for cp_rank in 0..cp_size {
                let columns = Columns::slice(it.seq_len, cp_rank, cp_size, zigzag);
                if !it.seq_len.is_multiple_of(parts) {
                    assert!(columns.unwrap_err().to_string().contains("equal parts"));
                    continue;
                }
                let len = (it.seq_len / parts) as usize;
                let starts = [cp_rank, 2 * cp_size - 1 - cp_rank];
                let starts = starts[..chunks as usize].iter().map(|&part| part as usize * len);
                let right: Vec<Cell> = rows
                    .iter()
                    .flat_map(|row| starts.clone().flat_map(|at| &row[at..at + len + 1]).map(copy))
                    .collect();
                let (cells, _) = it.filled(&columns.unwrap(), array, has_loss).unwrap();
                assert_eq!(cells, right, "rank {cp_rank} of {cp_size}");
            }
        }
    }
}

fn copy(cell: &Cell) -> Cell {
    Cell { ..*cell }
}

#[test]
fn tokens_keep_their_values_in_every_array_that_holds_them() {
    let kinds = [
        (TokenType::U8, 0, 255),
        (TokenType::U16, 0, 65_535),
        (TokenType::U32, 0, 0xffff_ffff),
        (TokenType::I32, -0x8000_0000, 0x7fff_ffff),
    ];
    let arrays = [(0, 65_535), (0, 0xffff_ffff), (-0x8000_0000, 0x7fff_ffff), (i64::MIN, i64::MAX)];
    for (kind, least, most) in kinds {
        for (array, holds) in arrays.iter().enumerate() {
            for value in [least, -1, 0, 255, 256, 65_535, 65_536, 0x7fff_ffff, 0x8000_0000, most] {
                if !(least..=most).contains(&value) {
                    continue;
                }
                let it = one(kind, &[1, 2, value, 3, 4]);
                if (holds.0..=holds.1).contains(&value) {
                    let (cells, _) = it.filled(&Columns::all(4), array, false).unwrap();
                    let tokens: Vec<i64> = cells.iter().map(|cell| cell.token).collect();
                    assert_eq!(tokens, [1, 2, value, 3, 4], "{kind:?} in array {array}");
                } else {
                    let text = it.refused(array);
                    let start = format!("token 2 of the document is {value}, which an array of");
                    assert!(text.starts_with(&start), "{text}");
                    assert!(text.ends_with("does not hold (sample 100, web)"), "{text}");
                }
            }
        }
    }
}

#[test]
fn tokens_outside_of_the_vocabulary_are_named() {
    for (kind, token) in [
        (TokenType::U8, 10),
        (TokenType::U16, 10),
        (TokenType::U32, 0x8000_0000),
        (TokenType::I32, 10),
        (TokenType::I32, -1),
    ] {
        let mut it = one(kind, &[9, 9, 9, token, 9]);
        it.rules.vocabulary = Some(10);
        let text = it.refused(3);
        let right = format!(
            "token 3 of the document is {token}, and the vocabulary has 10 tokens (sample 100, web)"
        );
        assert_eq!(text, right);
        it.documents[0].0[3] = 0;
        it.filled(&Columns::all(4), 3, true).unwrap();
        it.rules.separator = Some(10);
        assert!(it.refused(3).starts_with("the separator is token 10, and the vocabulary has 10"));
        it.rules.separator = None;
        it.rules.pad = 11;
        assert!(it.refused(3).starts_with("the padding is token 11"));
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written_past_it() {
    let mut it = one(TokenType::U16, &[1, 2, 3, 4, 5]);
    it.rules.separator = Some(65_536);
    assert!(it.refused(0).contains("the separator is token 65536, which an array of u16"));
    it.rules.separator = None;
    it.rules.pad = 0x8000_0000;
    assert!(it.refused(2).contains("the padding is token 2147483648, which an array of i32"));
    it.rules.pad = 0;
    it.documents[0].1.pop();
    assert!(it.refused(2).contains("the loss field has 4 bytes, and the document 5 tokens"));
    it.documents[0] = (vec![1; 3], vec![1; 3]);
    assert!(it.refused(2).contains("the document has 3 tokens, fewer than its length says"));
    it.rules.separator = Some(2);
    assert!(it.refused(2).contains("fewer than"), "a separator stands for one token");

    let none = |_| -> Result<Document<'static>> { unreachable!("no document is needed") };
    let columns = Columns::slice(4, 1, 2, true).unwrap();
    assert_eq!((columns.num_chunks(), columns.chunk_len()), (2, 2));
    let mut starts = Vec::new();
    let mut arrays = |tokens: &mut [u16], with_starts: bool| {
        let mut arrays = Arrays {
            tokens: TokensMut::U16(tokens),
            segment_ids: None,
            position_ids: None,
            loss_mask: None,
            cu_seqlens: with_starts.then_some(&mut starts),
            sample_ids: None,
        };
        fill(&it.layout, &columns, &it.rules, none, &mut arrays).unwrap_err().to_string()
    };
    let text = arrays(&mut [0; 3], false);
    assert_eq!(text, "tokens of 1 rows of 4 columns need 4 elements, and the array has 3");
    assert!(arrays(&mut [0; 4], true).contains("no cu_seqlens"));
    assert!(Columns::slice(4, 2, 2, false).unwrap_err().to_string().contains("rank 2"));
    it.layout.seq_len = 5;
    it.documents[0] = (vec![1; 5], vec![1; 5]);
    assert!(it.refused(2).contains("columns of 4 inputs hold no rows of 5"));
}

#[test]
fn a_context_parallel_rank_has_the_same_part_of_rows_of_another_length() {
    let of_64 = Columns::slice(64, 1, 4, true).unwrap();
    assert_eq!(of_64.of_rows(16).unwrap(), Columns::slice(16, 1, 4, true).unwrap());
    assert_eq!(of_64.of_narrow_rows(17).unwrap(), Columns::slice(24, 1, 4, true).unwrap());
    assert_eq!(of_64.of_narrow_rows(1).unwrap(), Columns::slice(8, 1, 4, true).unwrap());
    assert!(of_64.of_rows(17).unwrap_err().to_string().contains("17 tokens cannot be cut into 8"));
    assert_eq!(Columns::all(64).of_narrow_rows(17).unwrap(), Columns::all(17));
}
