"""Which functions and which kinds of syntax a model's query may hold; everything that is on no list is refused.

Names are those of sqlglot's classes, and of functions that sqlglot has no class for, by dialect. What is left out on
purpose: functions that touch files, the network, settings, locks, sequences or the clock of the server's processes;
that name tables in text; that tell who is logged in; that call a model; and those that stand for a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALLOWED: Final = frozenset(
    """
    Abs Acos Acosh AddMonths And AnyValue ApproxDistinct ApproxQuantile ApproxQuantiles ApproxTopK ArgMax ArgMin
    Array ArrayAgg ArrayAll ArrayAny ArrayAppend ArrayCompact ArrayConcat ArrayConcatAgg ArrayConstructCompact
    ArrayContainedBy ArrayContains ArrayContainsAll ArrayDistinct ArrayExcept ArrayFirst ArrayInsert
    ArrayIntersect ArrayLast ArrayMax ArrayMin ArrayOverlaps ArrayPosition ArrayPrepend ArrayRemove
    ArrayRemoveAt ArrayReverse ArraySize ArraySlice ArraySort ArraySum ArrayToString ArrayUnionAgg
    ArrayUniqueAgg ArraysZip Ascii Asin Asinh Atan Atan2 Atanh Avg Base64DecodeBinary Base64DecodeString
    Base64Encode BitLength BitwiseAndAgg BitwiseCount BitwiseOrAgg BitwiseXorAgg Booland Boolnot Boolor
    BoolxorAgg ByteLength Case Cast CastToStrType Cbrt Ceil Chr Coalesce CodePointsToBytes CodePointsToString
    Collate Concat ConcatWs Contains Convert ConvertTimezone ConvertToCharset Corr Cos Cosh Cot Coth Count
    CountIf CovarPop CovarSamp Csc Csch CumeDist CurrentDate CurrentDatetime CurrentTime CurrentTimestamp
    CurrentTimestampLTZ CurrentTimezone Date DateAdd DateBin DateDiff DateFromParts DateFromUnixDate
    DateStrToDate DateSub DateToDateStr DateToDi DateTrunc Datetime DatetimeAdd DatetimeDiff DatetimeSub
    DatetimeTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Dayname Decode DecodeCase Degrees DenseRank
    DiToDate Elt Encode EndsWith EqualNull Exists Exp Extract Factorial First FirstValue Float64 Floor Format
    FromBase FromBase32 FromBase64 FromISO8601Date FromISO8601Timestamp FromISO8601TimestampNanos FromJson
    Getbit Greatest GroupConcat Grouping GroupingId Hex HexDecodeString Hour If Initcap Int64 IsArray IsAscii
    IsInf IsNan IsNullValue JSONArray JSONArrayAgg JSONArrayAppend JSONArrayContains JSONArrayInsert
    JSONBContains JSONBContainsAllTopKeys JSONBContainsAnyTopKeys JSONBContainsTopKey JSONBDeleteAtPath
    JSONBExists JSONBExtract JSONBExtractScalar JSONBObjectAgg JSONBPathExists JSONBool JSONCast JSONExists
    JSONExtract JSONExtractArray JSONExtractScalar JSONFormat JSONKeys JSONObject JSONObjectAgg JSONRemove
    JSONSet JSONStripNulls JSONType JSONValueArray JarowinklerSimilarity JustifyDays JustifyHours
    JustifyInterval Kurtosis Lag Last LastDay LastValue LaxBool LaxFloat64 LaxInt64 LaxString Lead Least Left
    Length Levenshtein List Ln Localtime Localtimestamp Log LogicalAnd LogicalOr Lower LowerHex MD5 MD5Digest
    MakeInterval Map MapCat MapContainsKey MapFromEntries MapKeys MapSize Max Median Min Minute Mode Month
    Monthname MonthsBetween Nanvl Negative NextDay Normalize NthValue Ntile Nullif NumberToStr Nvl2 ObjectAgg Or
    Overlay ParseDatetime ParseJSON ParseNumeric ParseTime PercentRank PercentileCont PercentileDisc Pi Pow
    PreviousDay Quantile Quarter Radians Rand RangeBucket Rank RegexpCount RegexpExtract RegexpExtractAll
    RegexpFullMatch RegexpILike RegexpInstr RegexpLike RegexpReplace RegexpSplit RegexpSubstr RegrAvgx RegrAvgy
    RegrCount RegrIntercept RegrR2 RegrSlope RegrSxx RegrSxy RegrSyy RegrValx RegrValy Replace Reverse Right
    Rint Round RowNumber RtrimmedLength SHA SHA1Digest SHA2 SHA2Digest SafeAdd SafeDivide SafeMultiply
    SafeNegate SafeSubtract Sec Sech Second Sign Sin Sinh Skewness Soundex Split SplitPart Sqrt StartsWith
    Stddev StddevPop StddevSamp StrPosition StrToDate StrToMap StrToTime StrToUnix String StringToArray Strtok
    StrtokToArray Struct StructExtract Stuff Substring SubstringIndex Sum Tan Tanh Time TimeAdd TimeDiff
    TimeFromParts TimeSlice TimeStrToDate TimeStrToTime TimeStrToUnix TimeSub TimeToStr TimeToTimeStr TimeToUnix
    TimeTrunc Timestamp TimestampAdd TimestampDiff TimestampFromParts TimestampLtzFromParts TimestampSub
    TimestampTrunc TimestampTzFromParts ToArray ToBase32 ToBase64 ToBinary ToBoolean ToChar ToCodePoints ToDays
    ToDouble ToMap ToNumber Translate Trim Trunc Try TryBase64DecodeBinary TryBase64DecodeString TryCast
    TryHexDecodeBinary TryHexDecodeString TsOrDiToDi TsOrDsAdd TsOrDsDiff TsOrDsToDate TsOrDsToDateStr
    TsOrDsToDatetime TsOrDsToTime TsOrDsToTimestamp Typeof Unhex Unicode UnixDate UnixMicros UnixMillis
    UnixSeconds UnixToStr UnixToTime UnixToTimeStr Upper UtcDate UtcTime UtcTimestamp VarMap Variance
    VariancePop Week WeekOfYear WeekStart WidthBucket Xor Year YearOfWeek YearOfWeekIso
    """.split()
)
"""Classes of sqlglot whose SQL only computes with the values that it is given."""

SIZED: Final[Mapping[str, str]] = {"Repeat": "times", "Pad": "expression", "Space": "this"}
"""Classes that make long values out of nothing, and the argument that says how long: a number written in the query."""

REFUSED: Final = frozenset(
    """
    AIAgg AIClassify AIEmbed AIForecast AIGenerate AISimilarity AISummarizeAgg Agg AnonymousAggFunc Apply
    ApproxPercentileAccumulate ApproxPercentileCombine ApproxPercentileEstimate ApproxTopKAccumulate
    ApproxTopKCombine ApproxTopKEstimate ApproxTopSum ApproximateSimilarity ArrayFilter BitmapBitPosition
    BitmapBucketNumber BitmapConstructAgg BitmapCount BitmapOrAgg CheckJson CheckXml CityHash64 Collation
    Columns CombinedAggFunc CombinedParameterizedAgg Compress ConnectByRoot CosineDistance CurrentAccount
    CurrentAccountName CurrentAvailableRoles CurrentCatalog CurrentClient CurrentDatabase CurrentIpAddress
    CurrentOrganizationName CurrentOrganizationUser CurrentRegion CurrentRole CurrentRoleType CurrentSchema
    CurrentSchemas CurrentSecondaryRoles CurrentSession CurrentStatement CurrentTransaction CurrentUser
    CurrentUserId CurrentVersion CurrentWarehouse DecompressBinary DecompressString Decrypt DecryptRaw
    DotProduct DynamicIdentifier Encrypt EncryptRaw EuclideanDistance Explode ExplodingGenerateSeries
    FarmFingerprint FeaturesAtTime Flatten GapFill GenerateBool GenerateDateArray GenerateDouble
    GenerateEmbedding GenerateInt GenerateSeries GenerateTable GenerateText GenerateTimestampArray Generator
    GetExtract GetIgnoreCase HashAgg Hll Host Inline JSONKeysAtDepth JSONTable MD5NumberLower64 MD5NumberUpper64
    MLForecast MLTranslate ManhattanDistance MapDelete MapInsert MapPick MatchAgainst Minhash MinhashCombine
    NetFunc NextValueFor Normal ObjectId ObjectInsert ObjectTransform OpenJSON ParameterizedAgg ParseBignumeric
    ParseIp ParseUrl Posexplode PosexplodeOuter Predict Randn Randstr RangeN ReadCSV ReadParquet Reduce
    RegDomain SafeConvertBytesToString SafeFunc Search SearchIp Secret Seq1 Seq2 Seq4 Seq8 SessionUser Shuffle
    SoundexP123 SplitToTable StDistance StPoint Stack StandardHash StarMap StripNullValue StrtokSplitToTable
    Systimestamp ToDecfloat ToFile ToVariant Transform TryToDecfloat Uniform Unnest Uuid VectorSearch
    WeightString XMLElement XMLGet XMLTable Zipf _ExplodeOuter
    """.split()
)
"""Classes that were looked at and are not needed, or could do more than compute."""

NODES: Final = frozenset(
    """
    Add Alias Aliases All Any AtTimeZone Between BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr
    BitwiseRightShift BitwiseXor Boolean Bracket CTE Column Cube DPipe DataType DataTypeParam Distinct Div EQ
    Escape Except Fetch Filter FormatJson From GT GTE Glob Group GroupingSets Having HavingMax HexString ILike
    Identifier IgnoreNulls In IntDiv Intersect Interval IntervalSpan Is JSONExtractQuote JSONKeyValue JSONPath
    JSONPathKey JSONPathRoot JSONPathSlice JSONPathSubscript JSONPathUnion JSONPathWildcard JSONValue Join Kwarg
    LT LTE Lateral Like Limit LimitOptions Literal Mod Mul NEQ Neg Not Null NullSafeEQ NullSafeNEQ Offset Order
    Ordered Overlaps Paren PropertyEQ Qualify RespectNulls Rollup Select SimilarTo Slice Star Sub Subquery Table
    TableAlias Tuple Union Values Var Where Window WindowSpec With WithinGroup
    """.split()
)
"""Syntax of a query that reads. Statements, locks, hints, parameters, files and table functions are not among it."""

TYPES: Final = frozenset(
    """
    ARRAY BIGDECIMAL BIGINT BINARY BIT BOOLEAN BPCHAR CHAR DATE DATE32 DATETIME DATETIME2 DATETIME64 DECIMAL
    DECIMAL128 DECIMAL256 DECIMAL32 DECIMAL64 DOUBLE DOUBLE_PRECISION FLOAT HUGEINT INT INT128 INT256 INTERVAL
    JSON JSONB LIST LONGTEXT MAP MEDIUMINT MEDIUMTEXT MONEY NCHAR NULL NUMBER NVARCHAR REAL ROWVERSION
    SMALLDATETIME SMALLINT STRUCT TEXT TIME TIMESTAMP TIMESTAMPLTZ TIMESTAMPNTZ TIMESTAMPTZ TIMESTAMP_MS
    TIMESTAMP_NS TIMESTAMP_S TIMETZ TINYINT TINYTEXT UBIGINT UHUGEINT UINT UINT128 UINT256 UMEDIUMINT UNKNOWN
    USMALLINT UTINYINT UUID VARBINARY VARCHAR YEAR
    """.split()
)
"""Types that a value may be cast to: those without functions of their own behind them (no `regclass`, no domains)."""

_SQLITE: Final = """
    abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce concat concat_ws cos cosh count cume_dist
    current_date current_time current_timestamp date datetime degrees dense_rank exp first_value floor format glob
    group_concat hex ifnull iif instr json json_array json_array_length json_error_position json_extract
    json_group_array json_group_object json_insert json_object json_patch json_pretty json_quote json_remove
    json_replace json_set json_type json_valid jsonb jsonb_array jsonb_extract jsonb_group_array jsonb_group_object
    jsonb_insert jsonb_object jsonb_patch jsonb_remove jsonb_replace jsonb_set julianday lag last_value lead length
    like likelihood likely ln log log10 log2 lower ltrim max median min mod nth_value ntile nullif octet_length
    percent_rank percentile percentile_cont percentile_disc pi pow power printf quote radians random rank regexp
    replace round row_number rtrim sign sin sinh soundex sqrt string_agg strftime subtype substr substring sum tan
    tanh time timediff total trim trunc typeof unhex unicode unistr unistr_quote unixepoch unlikely upper -> ->>
    if
"""
_POSTGRES: Final = """
    age array_agg array_append array_cat array_dims array_length array_lower array_ndims array_position
    array_positions array_prepend array_remove array_replace array_to_json array_to_string array_upper bit_and bit_or
    bit_xor bool_and bool_or btrim cardinality clock_timestamp concat concat_ws convert_from convert_to corr date_bin
    date_part date_trunc decode div encode erf erfc every format gcd grouping initcap isfinite json_agg
    json_array_length json_build_array json_build_object json_extract_path json_extract_path_text json_object
    json_object_agg json_strip_nulls json_typeof jsonb_agg jsonb_array_length jsonb_build_array jsonb_build_object
    jsonb_extract_path jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_agg jsonb_path_exists
    jsonb_path_match jsonb_path_query_array jsonb_path_query_first jsonb_pretty jsonb_set jsonb_strip_nulls
    jsonb_typeof justify_days justify_hours justify_interval lcm make_date make_interval make_time make_timestamp
    make_timestamptz md5 min_scale mod normalize num_nonnulls num_nulls octet_length overlay parse_ident
    percentile_cont percentile_disc quote_ident quote_literal quote_nullable random range_agg range_merge regexp_count
    regexp_instr regexp_like regexp_match regexp_replace regexp_split_to_array regexp_substr regr_avgx row row_to_json
    scale sha224 sha256 sha384 sha512 sind starts_with statement_timestamp string_to_array strpos substr timezone
    to_ascii to_char to_date to_hex to_json to_jsonb to_number to_timestamp transaction_timestamp translate trim_array
    trim_scale trunc unistr width_bucket cosd tand asind acosd atand
"""
_DUCKDB: Final = """
    age array_cosine_similarity array_cross_product array_distance array_extract array_inner_product array_length
    array_value bar bin bit_count bool_and bool_or bit_and bit_or bit_xor century damerau_levenshtein datepart
    datesub date_part date_sub dayname decade editdist3 entropy epoch epoch_ms epoch_ns epoch_us era even fmod
    formatReadableDecimalSize formatReadableSize format_bytes fsum gamma gcd greatest_common_divisor hamming histogram
    isfinite isinf isnan isodow isoyear jaccard jaro_similarity jaro_winkler_similarity json json_array
    json_array_length json_contains json_extract json_extract_path json_extract_path_text json_extract_string
    json_group_array json_group_object json_keys json_merge_patch json_object json_quote json_structure json_transform
    json_type json_valid kahan_sum kurtosis_pop last_day lcm least_common_multiple lgamma list_aggregate list_any_value
    list_avg list_concat list_contains list_count list_distinct list_element list_extract list_has list_has_all
    list_has_any list_indexof list_max list_median list_min list_position list_reverse list_reverse_sort list_sort
    list_sum list_slice list_unique list_value mad make_date make_time make_timestamp map_entries map_extract
    map_values max_by min_by microsecond millennium millisecond mod monthname nanosecond nextafter ord parse_dirname
    printf product quantile_cont quantile_disc random regexp_escape regexp_extract_all regexp_matches
    regexp_split_to_array row sem set_bit signbit stem strftime string_split string_split_regex strip_accents
    strlen struct_extract struct_insert struct_pack substring_grapheme sumkahan time_bucket timezone_hour
    timezone_minute to_base to_days to_hours to_minutes to_months to_seconds to_timestamp to_weeks to_years
    translate try_strptime unbin union_extract union_tag unpivot_list url_decode url_encode weekday weekofyear
    yearweek list_filter_none strptime length_grapheme left_grapheme right_grapheme
"""
_MYSQL: Final = """
    adddate addtime ascii bin bit_and bit_or bit_xor bit_count ceiling char_length character_length concat_ws conv
    crc32 curdate curtime date_format datediff dayname dayofmonth dayofweek dayofyear div elt export_set field
    find_in_set format from_days from_unixtime group_concat hex ifnull insert instr interval isnull json_array
    json_array_append json_arrayagg json_contains json_contains_path json_depth json_extract json_keys json_length
    json_merge_patch json_merge_preserve json_object json_objectagg json_overlaps json_pretty json_quote json_remove
    json_replace json_search json_set json_type json_unquote json_valid json_value lcase locate log10 log2 make_set
    makedate maketime microsecond mid mod monthname oct octet_length ord period_add period_diff position quote rand
    sec_to_time std str_to_date strcmp subdate subtime substring_index sysdate time_format time_to_sec timestampadd
    timestampdiff to_base64 from_base64 to_days to_seconds truncate ucase unhex unix_timestamp utc_date utc_time
    utc_timestamp var_pop var_samp week weekday weekofyear yearweek
"""
_ANY: Final = "row mod"

NAMES: Final[Mapping[str, frozenset[str]]] = {
    dialect: frozenset(f"{names} {_ANY}".lower().split())
    for dialect, names in {
        "sqlite": _SQLITE,
        "postgres": _POSTGRES,
        "duckdb": _DUCKDB,
        "mysql": _MYSQL,
        "": "",
    }.items()
}
"""Functions that sqlglot has no class for, by its dialect; for SQLite all that its authorizer lets pass."""


def names_of(dialect: str) -> frozenset[str]:
    """The untyped functions of a dialect, in small letters; a dialect without a list has few."""
    return NAMES.get(dialect, NAMES[""])
